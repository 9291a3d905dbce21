"""Forget what happened inside a layer and compute it again when the backward pass asks for it.

The backward pass needs every layer's inner results, and keeping them is most of a training's memory. A
checkpointed layer keeps only its input and runs a second time on the way back: about a third more time.
With `every=2` only every second layer forgets, for half the saving at half the price.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from tightfit.errors import RecipeError
from tightfit.models import layer_stacks
from tightfit.strategies.base import MemoryKind, Result, Strategy
from tightfit.strategies.parts import Parts

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Checkpoint(Strategy):
    """Gradient checkpointing that leaves frozen layers frozen."""

    name: ClassVar[str] = "gradient-checkpointing"
    frees: ClassVar[tuple[MemoryKind, ...]] = (MemoryKind.ACTIVATIONS,)
    result: ClassVar[Result] = Result.SAME
    summary: ClassVar[str] = "recomputes each layer's insides in the backward pass (gradient checkpointing)"
    exclusive: ClassVar[str | None] = "recomputation"
    gradients_only: ClassVar[bool] = True

    every: int = Field(default=1, ge=1)
    """Checkpoint every n-th layer."""

    @property
    def period(self) -> int:
        return self.every

    def apply(self, parts: Parts) -> Parts:
        if parts.model.supports_gradient_checkpointing:
            _as_transformers_does(parts.model, self.every)
        else:
            _by_hand(parts.model, self.every)
        return parts


def _as_transformers_does(model: PreTrainedModel, every: int) -> None:
    model.gradient_checkpointing_enable({"use_reentrant": False}, every_n_layers=every)
    # transformers also makes the embeddings' output require a gradient, which only the reentrant kind needs.
    # With frozen layers it would send the backward pass through all of them for nothing.
    model.disable_input_require_grads()


def _by_hand(model: PreTrainedModel, every: int) -> None:
    """For architectures that transformers does not mark as checkpointable (MPNet, ALBERT)."""
    stacks = layer_stacks(model)
    if not stacks:
        raise RecipeError(f"'checkpoint' finds no layers in {type(model).__name__}: leave it out.")
    for stack in stacks:
        for layer in list(stack)[::every]:
            layer.forward = _CheckpointedForward(layer, layer.forward)


class _CheckpointedForward:
    """A layer's forward that keeps its insides only while evaluating."""

    def __init__(self, layer: nn.Module, forward: Callable[..., Any]) -> None:
        self.layer, self.forward = layer, forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from torch.utils.checkpoint import checkpoint

        if not self.layer.training:
            return self.forward(*args, **kwargs)
        return checkpoint(partial(self.forward, **kwargs), *args, use_reentrant=False)
