"""The strategies, gentlest first. Adding one means one file and one line here."""

from __future__ import annotations

from tightfit.strategies.adafactor import Adafactor
from tightfit.strategies.adamw import AdamW
from tightfit.strategies.adamw_8bit import AdamW8Bit
from tightfit.strategies.adamw_16bit import AdamW16Bit
from tightfit.strategies.attention import Attention
from tightfit.strategies.bf16_weights import BF16Weights
from tightfit.strategies.bucket import Bucket
from tightfit.strategies.checkpoint import Checkpoint
from tightfit.strategies.freeze import Freeze
from tightfit.strategies.lora import Lora
from tightfit.strategies.max_length import MaxLength
from tightfit.strategies.mixed_precision import MixedPrecision
from tightfit.strategies.offload_activations import OffloadActivations
from tightfit.strategies.offload_optimizer import OffloadOptimizer
from tightfit.strategies.slice import Slice
from tightfit.strategies.slice_layers import SliceLayers
from tightfit.strategies.slice_tokens import SliceTokens
from tightfit.strategies.step_in_backward import StepInBackward
from tightfit.strategy import Strategy

_ALL: tuple[type[Strategy], ...] = (
    AdamW,
    Attention,
    Slice,
    SliceTokens,
    Checkpoint,
    SliceLayers,
    OffloadActivations,
    Bucket,
    MixedPrecision,
    AdamW16Bit,
    AdamW8Bit,
    Adafactor,
    BF16Weights,
    OffloadOptimizer,
    StepInBackward,
    Lora,
    Freeze,
    MaxLength,
)

STRATEGIES: dict[str, type[Strategy]] = {strategy.name: strategy for strategy in _ALL}
