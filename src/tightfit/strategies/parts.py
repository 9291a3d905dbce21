"""Parts: what a training step consists of, and what strategies replace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from tightfit.data.batching import Batching
from tightfit.data.micro_batches import RowLimits
from tightfit.device import Device
from tightfit.messages import Message

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from transformers import PreTrainedModel

    from tightfit.data.batches import Batch

    OptimizerFactory = Callable[[list[dict[str, Any]], float], torch.optim.Optimizer]
    OptimizerWrapper = Callable[[OptimizerFactory, list[dict[str, Any]], float], torch.optim.Optimizer]


class Precision(str, Enum):
    """The number format of the forward and backward pass; weights stay in fp32."""

    FP32 = "no"
    BF16 = "bf16"
    FP16 = "fp16"

    @property
    def dtype(self) -> str:
        """Its name in torch."""
        return {"no": "float32", "bf16": "bfloat16", "fp16": "float16"}[self.value]


class RowSource(Protocol):
    """What the rows of a training step are: tokens, or the cached outputs of an encoder that ran before."""

    runs_encoder: bool
    """Whether a training step runs the encoder."""

    def batching(self, tokens: Batching) -> Batching:
        """How the rows of a step are batched, given the batching of the tokens."""

    def encoder_batches(self, tokens: Batching, lengths: Sequence[int]) -> list[list[int]]:
        """The lengths of the batches that run once through the encoder before training."""

    @property
    def row_bytes(self) -> int:
        """Bytes on disk of a row that is computed before training."""

    def encode(self, batch: Batch, *, check: bool) -> Batch:
        """Compute the rows of a step from a batch of tokens; `check` that the model gives the same logits for them."""

    def fake_batch(self, tokens: Callable[..., Batch]) -> Batch:
        """A batch of a step for a simulation; `tokens` makes one of tokens, or only the fields that are named."""

    def without_model(self) -> RowSource:
        """A copy that can be pickled."""


class Export(Protocol):
    """What checkpoints and the saved model hold."""

    saves_model: bool
    """Whether the saved model has all weights, not only an adapter for those of the base model."""

    def checkpoint_weights(self, model: PreTrainedModel) -> dict[str, torch.Tensor]:
        """The weights of a checkpoint, by name."""

    def finish(self, folder: Path | None) -> None:
        """Make the trained model an ordinary one before it is saved; files of its own go to the folder, if given."""


class Stepping(Protocol):
    """When the optimizer updates the parameters."""

    in_backward: bool
    """Whether it does so inside the backward pass, of which a step then has only one."""

    def prepare(self, optimizer: torch.optim.Optimizer, max_grad_norm: float) -> None:
        """Called once, before the first step."""


class Tokens:
    """Rows are tokens: every step runs the whole model."""

    runs_encoder = True

    def batching(self, tokens: Batching) -> Batching:
        return tokens

    def encoder_batches(self, tokens: Batching, lengths: Sequence[int]) -> list[list[int]]:
        return []

    @property
    def row_bytes(self) -> int:
        return 0

    def encode(self, batch: Batch, *, check: bool) -> Batch:
        return batch

    def fake_batch(self, tokens: Callable[..., Batch]) -> Batch:
        return tokens()

    def without_model(self) -> Tokens:
        return self


class WholeModel:
    """Checkpoints and the saved model hold all weights."""

    saves_model = True

    def checkpoint_weights(self, model: PreTrainedModel) -> dict[str, torch.Tensor]:
        return model.state_dict()

    def finish(self, folder: Path | None) -> None:
        pass


class AfterBackward:
    """The optimizer steps once all gradients are complete."""

    in_backward = False

    def prepare(self, optimizer: torch.optim.Optimizer, max_grad_norm: float) -> None:
        pass


def trained_weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The trainable parameters by name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Everything a training step consists of. Strategies replace some of it; the rest comes from the job.

    The model itself is changed in place.
    """

    model: PreTrainedModel
    device: Device
    optimizer: OptimizerFactory
    batching: Batching
    """How rows of tokens are batched and cut into micro-batches."""
    learning_rate: float
    weight_decay: float
    max_grad_norm: float
    optimizer_settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of every parameter group, beside learning rate and weight decay: those that the job gives."""
    optimizer_wrappers: tuple[OptimizerWrapper, ...] = ()
    """What is put around the optimizer, the outermost last."""
    stepping: Stepping = field(default_factory=AfterBackward)
    peft_type: str | None = None
    """peft's name for the task."""
    precision: Precision = Precision.FP32
    source: RowSource = field(default_factory=Tokens)
    export: Export = field(default_factory=WholeModel)
    shrinkable: tuple[RowLimits, ...] = ()
    """Limits that a run may lower after an out-of-memory error, before it lowers those of micro-batches."""
    notes: tuple[Message, ...] = ()
    """What the strategies report to the user."""

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        return sum(getattr(p, "elements", p.numel()) for p in self.model.parameters())  # of a quantized weight its own

    @property
    def trainable_parameters(self) -> int:
        """The number of trainable parameters."""
        return sum(parameter.numel() for parameter in self.model.parameters() if parameter.requires_grad)

    @property
    def checkpoint_weights(self) -> dict[str, torch.Tensor]:
        """The weights that a checkpoint holds, by name."""
        return self.export.checkpoint_weights(self.model)

    @property
    def step_batching(self) -> Batching:
        """How the rows of a training step are batched: those of cached features need no micro-batches."""
        return self.source.batching(self.batching)

    def wrap_optimizer(self, wrapper: OptimizerWrapper) -> Parts:
        """The parts with something around the optimizer, whichever it is."""
        return replace(self, optimizer_wrappers=(*self.optimizer_wrappers, wrapper))

    def new_optimizer(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """The optimizer over parameter groups, with everything around it."""
        factory = self.optimizer
        for wrapper in self.optimizer_wrappers:
            factory = partial(wrapper, factory)
        return factory(groups, self.learning_rate)

    def without_model(self) -> Parts:
        """What is left for the estimates of a traced recipe; it can be pickled, which a user's optimizer may not."""
        nothing: Any = None
        return replace(
            self,
            model=nothing,
            optimizer=nothing,
            source=self.source.without_model(),
            export=WholeModel(),
            shrinkable=(),
        )
