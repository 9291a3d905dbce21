"""Parts: what a training step consists of, and what strategies replace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from tightfit.data.batches import RowLimits
from tightfit.device import Device

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from tightfit.ops.feature_cache import FeatureCache
    from tightfit.ops.lora_adapter import LoraAdapter

    OptimizerFactory = Callable[[list[dict[str, Any]], float], torch.optim.Optimizer]


class Precision(str, Enum):
    """The number format of the forward and backward pass; weights stay in fp32."""

    FP32 = "no"
    BF16 = "bf16"
    FP16 = "fp16"


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Everything a training step consists of. Strategies replace some of it; the rest comes from the job."""

    model: PreTrainedModel
    device: Device
    optimizer: OptimizerFactory
    batch_size: int
    """Rows per optimizer step. No strategy may change it."""
    max_length: int
    """Tokens that a text is truncated to."""
    learning_rate: float
    weight_decay: float
    max_grad_norm: float
    micro_batch_size: int
    """Rows per micro-batch."""
    micro_batch_tokens: int | None = None
    """Tokens per micro-batch, for recipes that limit tokens instead of rows."""
    layer_rows: int | None = None
    """Rows per chunk of a layer, where layers run in chunks."""
    layer_limits: RowLimits | None = None
    """The same as limits, which a run lowers after an out-of-memory error."""
    optimizer_in_backward: bool = False
    """Whether each parameter is updated in the backward pass, as soon as its gradient is complete."""
    precision: Precision = Precision.FP32
    bucket_batches: int = 0
    """Batches whose rows are sorted by length together (length bucketing); 0 for random order."""
    adapter: LoraAdapter | None = None
    """A LoRA adapter; merged or removed before the model is saved."""
    feature_cache: FeatureCache | None = None
    """A frozen encoder that runs once over each example; the head then trains on its cached outputs."""
    notes: tuple[str, ...] = ()
    """What the strategies report to the user."""

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def trainable_parameters(self) -> int:
        """The number of trainable parameters."""
        return sum(parameter.numel() for parameter in self.model.parameters() if parameter.requires_grad)

    @property
    def trained_weights(self) -> dict[str, torch.Tensor]:
        """The trainable parameters by name."""
        return {name: parameter for name, parameter in self.model.named_parameters() if parameter.requires_grad}

    @property
    def checkpoint_weights(self) -> dict[str, torch.Tensor]:
        """The weights that a checkpoint holds, by name."""
        return self.trained_weights if self.saves_only_trained else self.model.state_dict()

    @property
    def saves_only_trained(self) -> bool:
        """Whether checkpoints leave out the base model, because it does not change."""
        return self.adapter is not None or self.feature_cache is not None

    @property
    def micro_batch_rows(self) -> int:
        """Rows per micro-batch of the longest texts; the whole batch where only cached features are trained on."""
        return self.batch_size if self.feature_cache else self._rows_at_max_length

    @property
    def row_limits(self) -> RowLimits:
        """The limits by which a batch is split into micro-batches."""
        if self.micro_batch_tokens is None or self.feature_cache:
            return RowLimits(self.micro_batch_rows)
        return RowLimits(self.batch_size, self.micro_batch_tokens)

    @property
    def _rows_at_max_length(self) -> int:
        """Rows per micro-batch where all texts have the maximum length."""
        if self.micro_batch_tokens is None:
            return self.micro_batch_size
        return min(self.batch_size, RowLimits(self.batch_size, self.micro_batch_tokens).rows_for(self.max_length))

    @property
    def no_grad_rows(self) -> int:
        """Rows per forward pass without gradients: at least 8, since no activations are saved."""
        return min(self.batch_size, max(self.layer_rows or self._rows_at_max_length, 8))

    @property
    def evaluation_rows(self) -> int:
        """Rows per batch of an evaluation."""
        return self.batch_size if self.feature_cache else self.no_grad_rows
