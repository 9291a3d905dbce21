"""Run each layer a few rows at a time, and its second run in the backward pass as well.

Slices of the whole model need a backward pass each, and gradients that wait for the last one. Here the whole batch
goes through once, layer by layer; only inside a layer it is cut. Every piece is checkpointed: what it computed is
forgotten and computed again when the backward pass arrives, one piece after the other. So a batch of any size needs
the insides of one piece, there is one backward pass, and each gradient is complete when its layer is done.
Rows are sorted by length and cut where the least padding is left, which often wins back the time of the second run.

What is left are the states between layers, kept for the whole batch. `layers=2` lets a piece go through two layers
before the next one comes: half as many states, no more to compute, and the insides and gradients of two layers at once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from tightfit.data.batches import RowLimits
from tightfit.errors import RecipeError
from tightfit.models import layer_stacks
from tightfit.strategies.base import MemoryKind, Result, Strategy
from tightfit.strategies.parts import Parts


@dataclass(frozen=True)
class SliceLayers(Strategy):
    """Checkpointing by layer and by slice at once."""

    name: ClassVar[str] = "chunked-layers"
    frees: ClassVar[tuple[MemoryKind, ...]] = (MemoryKind.ACTIVATIONS,)
    result: ClassVar[Result] = Result.SAME
    summary: ClassVar[str] = (
        "checkpoints every layer and runs it a few rows at a time, in one pass over the whole batch"
    )
    exclusive: ClassVar[str | None] = "recomputation"
    scales: ClassVar[bool] = False
    gradients_only: ClassVar[bool] = True

    size: int = Field(ge=1)
    """Rows that go through a layer at once; more where they are shorter than the longest."""
    layers: int = Field(default=1, ge=1)
    """Layers that a piece goes through before the next one comes."""

    @property
    def together(self) -> int:
        return self.layers

    def apply(self, parts: Parts) -> Parts:
        stacks = layer_stacks(parts.model)
        if not stacks:
            raise RecipeError(f"'{self.name}' finds no layers in {type(parts.model).__name__}: use slice in its place.")
        from tightfit.ops.chunked_layer import slice_layers

        limits = RowLimits(self.size)
        slice_layers(parts.model, stacks, limits, self.layers, parts.device.kind)
        return replace(parts, layer_rows=min(self.size, parts.batch_size), layer_limits=limits)
