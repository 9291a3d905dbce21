"""Parts: what a training step is made of, and what a strategy may replace."""

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
    from tightfit.ops.lora import LoraAdapter

    OptimizerFactory = Callable[[list[dict[str, Any]], float], torch.optim.Optimizer]


class Precision(str, Enum):
    """The number format of the forward and backward pass; weights stay in fp32."""

    FP32 = "no"
    BF16 = "bf16"
    FP16 = "fp16"


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Everything a training step is made of. Strategies replace some of it; the rest is as the job says."""

    model: PreTrainedModel
    device: Device
    optimizer: OptimizerFactory
    batch_size: int
    """Rows per optimizer step. No strategy may change it."""
    max_length: int
    """Tokens a text is cut at."""
    learning_rate: float
    weight_decay: float
    max_grad_norm: float
    micro_batch_size: int
    """Rows that go through the model at once."""
    micro_batch_tokens: int | None = None
    """Tokens that do, where a recipe counts them in place of rows."""
    layer_rows: int | None = None
    """Rows that go through one layer at once, where that is fewer than go through the model."""
    layer_limits: RowLimits | None = None
    """The same, for a run to make smaller when memory runs out."""
    step_in_backward: bool = False
    """Whether each parameter is stepped when its gradient arrives."""
    precision: Precision = Precision.FP32
    pool: int = 0
    """Batches whose rows are sorted by length together, so that rows of like length meet; 0: rows meet by chance."""
    adapter: LoraAdapter | None = None
    """What learns beside the weights; it is taken out before the model is saved."""
    feature_cache: FeatureCache | None = None
    """A trunk that runs once over each text; what trains then reads what was kept of it."""
    notes: tuple[str, ...] = ()
    """What the strategies have to say to the user."""

    @property
    def parameters(self) -> int:
        """How many numbers the model holds."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def trainable_parameters(self) -> int:
        """How many of them learn."""
        return sum(parameter.numel() for parameter in self.model.parameters() if parameter.requires_grad)

    @property
    def trained_weights(self) -> dict[str, torch.Tensor]:
        """What learns, by name."""
        return {name: parameter for name, parameter in self.model.named_parameters() if parameter.requires_grad}

    @property
    def checkpoint_weights(self) -> dict[str, torch.Tensor]:
        """What a checkpoint holds, by name."""
        return self.trained_weights if self.saves_only_trained else self.model.state_dict()

    @property
    def saves_only_trained(self) -> bool:
        """Whether the base model is left as it was, so that a checkpoint need not repeat it."""
        return self.adapter is not None or self.feature_cache is not None

    @property
    def micro_batch_rows(self) -> int:
        """Rows trained at once: of what was kept of a trunk, which is little, all of them."""
        return self.batch_size if self.feature_cache else self._rows_at_once

    @property
    def slices(self) -> RowLimits:
        """How a batch is cut into slices."""
        if self.micro_batch_tokens is None or self.feature_cache:
            return RowLimits(self.micro_batch_rows)
        return RowLimits(self.batch_size, self.micro_batch_tokens)

    @property
    def _rows_at_once(self) -> int:
        """Where texts are as long as they may be."""
        if self.micro_batch_tokens is None:
            return self.micro_batch_size
        return min(self.batch_size, RowLimits(self.batch_size, self.micro_batch_tokens).at(self.max_length))

    @property
    def eval_rows(self) -> int:
        """Rows that go at once through a model that does not learn: no fewer than 8, since nothing waits."""
        return min(self.batch_size, max(self.layer_rows or self._rows_at_once, 8))

    @property
    def evaluation_rows(self) -> int:
        """Rows evaluated at once."""
        return self.batch_size if self.feature_cache else self.eval_rows
