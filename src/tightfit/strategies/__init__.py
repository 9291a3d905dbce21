"""The list of strategies, in the order in which plans print them; a new strategy is one file and its entry here."""

from __future__ import annotations

from tightfit.strategies.adafactor import Adafactor
from tightfit.strategies.adamw import AdamW
from tightfit.strategies.adamw_8bit import AdamW8Bit
from tightfit.strategies.adamw_16bit import AdamW16Bit
from tightfit.strategies.base import Strategy
from tightfit.strategies.bf16_weights import BF16Weights
from tightfit.strategies.chunked_layers import ChunkedLayers
from tightfit.strategies.chunked_loss import ChunkedLoss
from tightfit.strategies.freeze import Freeze
from tightfit.strategies.gradient_checkpointing import GradientCheckpointing
from tightfit.strategies.length_bucketing import LengthBucketing
from tightfit.strategies.lora import Lora
from tightfit.strategies.max_length import MaxLength
from tightfit.strategies.micro_batch import MicroBatch
from tightfit.strategies.mixed_precision import MixedPrecision
from tightfit.strategies.offload_activations import OffloadActivations
from tightfit.strategies.offload_optimizer import OffloadOptimizer
from tightfit.strategies.optimizer_in_backward import OptimizerInBackward
from tightfit.strategies.packing import Packing
from tightfit.strategies.quantize import Quantize
from tightfit.strategies.tiled_attention import TiledAttention

# Optimizers are listed from most to least state.
_ALL: tuple[type[Strategy], ...] = (
    AdamW,
    TiledAttention,
    ChunkedLoss,
    Packing,
    MicroBatch,
    GradientCheckpointing,
    ChunkedLayers,
    OffloadActivations,
    LengthBucketing,
    MixedPrecision,
    AdamW16Bit,
    AdamW8Bit,
    Adafactor,
    BF16Weights,
    OffloadOptimizer,
    OptimizerInBackward,
    Lora,
    Freeze,
    Quantize,
    MaxLength,
)

STRATEGIES: dict[str, type[Strategy]] = {strategy.name: strategy for strategy in _ALL}
