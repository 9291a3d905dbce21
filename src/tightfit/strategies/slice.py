"""Run the batch through the model a few rows at a time.

The activations of a step grow with the rows that are in the model at once. Gradients add up, so the batch can
go through in slices: each slice's loss is weighed by its share of the batch's labels, and the sum of the
gradients is that of the whole batch to rounding. Rows are sorted by length first and each slice loses its
padding, so slicing often saves time too. The number of rows per optimizer step stays what the user asked for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from tightfit.strategies.parts import Parts
from tightfit.strategy import Kind, Result, Strategy


@dataclass(frozen=True)
class Slice(Strategy):
    """The micro-batch, without the mistakes of gradient accumulation."""

    name: ClassVar[str] = "slice"
    frees: ClassVar[tuple[Kind, ...]] = (Kind.ACTIVATIONS,)
    result: ClassVar[Result] = Result.SAME
    summary: ClassVar[str] = "runs the batch through the model a few rows at a time (micro-batches)"
    chooses: ClassVar[str | None] = "slices"
    shapes_only: ClassVar[bool] = True
    passes_only: ClassVar[bool] = True

    size: int = Field(ge=1)
    """Rows that go through the model at once."""

    def apply(self, parts: Parts) -> Parts:
        return replace(parts, slice_rows=min(self.size, parts.batch_size))
