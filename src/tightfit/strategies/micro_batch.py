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

from tightfit.strategies.base import Kind, Result, Strategy
from tightfit.strategies.parts import Parts


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


# Run the batch through the model so many tokens at a time.
#
# What a slice takes grows with its tokens, so slices of a fixed number of rows are as large as meant only where texts
# are longest: those of short texts are small, there are many of them, and each reads all weights and adds up all gradients.
# Here a slice holds as many rows as have room for their tokens, padding included: few long texts or many short ones.
# Same gradients as `slice`, to rounding, and the same peak; fewer slices, so less time.


@dataclass(frozen=True)
class SliceTokens(Strategy):
    """Micro-batches by tokens rather than by rows."""

    name: ClassVar[str] = "slice-tokens"
    frees: ClassVar[tuple[Kind, ...]] = (Kind.ACTIVATIONS,)
    result: ClassVar[Result] = Result.SAME
    summary: ClassVar[str] = (
        "runs the batch through the model so many tokens at a time: few long texts or many short ones"
    )
    chooses: ClassVar[str | None] = Slice.chooses
    usual: ClassVar[int] = 1024
    shapes_only: ClassVar[bool] = True
    passes_only: ClassVar[bool] = True

    tokens: int = Field(ge=1)
    """Tokens that go through the model at once, padding included; a longer text is alone."""

    def apply(self, parts: Parts) -> Parts:
        return replace(parts, slice_tokens=self.tokens)
