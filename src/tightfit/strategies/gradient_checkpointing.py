"""Gradient checkpointing: recompute each layer's activations in the backward pass instead of storing them.

The backward pass needs the intermediate activations of every layer, and they take most of the memory of training. A
checkpointed layer stores only its input and is computed a second time in the backward pass: about a third more time.
With `every=2` only every second layer is checkpointed, for half the saving at half the cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from tightfit.errors import RecipeError
from tightfit.messages import Message, msg
from tightfit.models import layer_stacks
from tightfit.strategies.base import Case, Changes, MemoryKind, Result, Stage, Strategy, TraceHints
from tightfit.strategies.parts import Parts

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class GradientCheckpointing(Strategy):
    """Gradient checkpointing that leaves frozen layers frozen."""

    name: ClassVar[str] = "gradient-checkpointing"
    frees: ClassVar[tuple[MemoryKind, ...]] = (MemoryKind.ACTIVATIONS,)
    result: ClassVar[Result] = Result.SAME
    summary: ClassVar[Message] = msg("recomputes each layer's activations in the backward pass instead of storing them")
    exclusive: ClassVar[str | None] = "recomputation"
    changes: ClassVar[Changes] = Changes.GRADIENTS

    every: int = Field(default=1, ge=1)
    """Checkpoint every n-th layer."""

    @property
    def hints(self) -> TraceHints:
        return TraceHints(layer_period=self.every)

    @classmethod
    def offers(cls, case: Case) -> Sequence[Strategy]:
        if case.stage is Stage.USUAL:
            return cls(every=2), cls()
        return (cls(),) if case.stage >= Stage.FEWER_PARAMETERS else ()

    def suits(self, others: Sequence[Strategy], case: Case) -> bool:
        """Reject every > 1 together with an optimizer step in the backward pass.

        That step cannot use micro-batches, so only checkpointing every layer saves enough memory.
        """
        return self.every == 1 or not any(other.steps_in_backward for other in others)

    def apply(self, parts: Parts) -> Parts:
        if parts.model.supports_gradient_checkpointing:
            _enable_hf(parts.model, self.every)
        else:
            _wrap_layers(parts.model, self.every)
        return parts


def _enable_hf(model: PreTrainedModel, every: int) -> None:
    model.gradient_checkpointing_enable({"use_reentrant": False}, every_n_layers=every)
    # transformers also makes the embeddings' output require a gradient, which only reentrant checkpointing needs.
    # With frozen layers the backward pass would run through all of them for nothing.
    model.disable_input_require_grads()


def _wrap_layers(model: PreTrainedModel, every: int) -> None:
    """For architectures that transformers does not mark as checkpointable (MPNet, ALBERT)."""
    stacks = layer_stacks(model)
    if not stacks:
        name = type(model).__name__
        raise RecipeError(msg("'gradient-checkpointing' finds no layers in {model}: leave it out.", model=name))
    for stack in stacks:
        for layer in list(stack)[::every]:
            layer.forward = _CheckpointedForward(layer, layer.forward)


class _CheckpointedForward:
    """A layer's forward, checkpointed while training."""

    def __init__(self, layer: nn.Module, forward: Callable[..., Any]) -> None:
        self.layer, self.forward = layer, forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from torch.utils.checkpoint import checkpoint

        if not self.layer.training:
            return self.forward(*args, **kwargs)
        return checkpoint(partial(self.forward, **kwargs), *args, use_reentrant=False)


GradientCheckpointing.zh = {
    GradientCheckpointing.summary: "不保存每层的中间激活值，反向传播时重新计算（梯度检查点）",
    "'gradient-checkpointing' finds no layers in {model}: leave it out.": (
        "“gradient-checkpointing”在 {model} 中找不到层：请去掉它。"
    ),
}
