"""Run each layer on a few rows at a time, in the forward pass and when the backward pass recomputes it.

Micro-batches of the whole model need a backward pass each, and gradients that stay in memory until the last one. Here
the whole batch goes through the model once, layer by layer, and is split into chunks only inside a layer. Every chunk
is checkpointed: its activations are dropped and recomputed in the backward pass, one chunk after the other. So a batch
of any size needs the activations of a single chunk, there is one backward pass, and each gradient is complete when its
layer is done. Rows are sorted by length and split where the least padding is left, which often makes up for the time
of the recomputation.

What remains are the hidden states between layers, which are stored for the whole batch. With `layers=2` a chunk goes
through two layers before the next one starts: half as many hidden states, no more computation, and the activations and
gradients of two layers at a time.
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
class ChunkedLayers(Strategy):
    """Gradient checkpointing by layer and by chunk of the batch."""

    name: ClassVar[str] = "chunked-layers"
    frees: ClassVar[tuple[MemoryKind, ...]] = (MemoryKind.ACTIVATIONS,)
    result: ClassVar[Result] = Result.SAME
    summary: ClassVar[str] = (
        "runs each layer in chunks of a few rows, with recomputation; unlike micro-batch, one backward pass per batch"
    )
    exclusive: ClassVar[str | None] = "recomputation"
    same_ops_at_any_size: ClassVar[bool] = False
    gradients_only: ClassVar[bool] = True

    size: int = Field(ge=1)
    """Rows per chunk; more where they are shorter than the longest."""
    layers: int = Field(default=1, ge=1)
    """Layers that a chunk goes through before the next one starts."""

    @property
    def layers_per_block(self) -> int:
        return self.layers

    def apply(self, parts: Parts) -> Parts:
        stacks = layer_stacks(parts.model)
        if not stacks:
            raise RecipeError(
                f"'{self.name}' finds no layers in {type(parts.model).__name__}: use micro-batch instead."
            )
        from tightfit.ops.chunked_layer import chunk_layers

        limits = RowLimits(self.size)
        chunk_layers(parts.model, stacks, limits, self.layers, parts.device.kind)
        return replace(parts, layer_rows=min(self.size, parts.batch_size), layer_limits=limits)
