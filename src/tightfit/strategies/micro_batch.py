"""Run the batch through the model in micro-batches of a few rows, or of a number of tokens (gradient accumulation).

The activations of a step grow with the rows that are in the model together. Gradients add up, so the batch can go
through in micro-batches: the loss of each is weighted by its share of the batch's labels, and the sum of the gradients
equals that of the whole batch up to rounding. Rows are sorted by length first and each micro-batch is padded only to
its own longest row, which often saves time too. The number of rows per optimizer step stays the job's batch size.

With `tokens` a micro-batch holds as many rows as fit into that number of tokens, padding included: a few long texts or
many short ones. Micro-batches of a fixed number of rows reach the peak only where texts are longest; those of short
texts are small, there are many of them, and each reads all weights and adds to all gradients. By tokens the peak is
the same, there are fewer micro-batches, and a step takes less time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from tightfit.errors import RecipeError
from tightfit.strategies.base import MemoryKind, Result, Strategy
from tightfit.strategies.parts import Parts


@dataclass(frozen=True)
class MicroBatch(Strategy):
    """Gradient accumulation with exactly the gradients of the whole batch."""

    name: ClassVar[str] = "micro-batch"
    frees: ClassVar[tuple[MemoryKind, ...]] = (MemoryKind.ACTIVATIONS,)
    result: ClassVar[Result] = Result.SAME
    summary: ClassVar[str] = (
        "splits the batch into micro-batches, by rows or tokens, and accumulates the exact gradient of the whole batch"
    )
    exclusive: ClassVar[str | None] = "micro-batch"
    batch_only: ClassVar[bool] = True
    gradients_only: ClassVar[bool] = True

    size: int | None = Field(default=None, ge=1)
    """Rows per micro-batch."""
    tokens: int | None = Field(default=None, ge=1)
    """Tokens per micro-batch, padding included; a longer text is a micro-batch of its own."""

    @classmethod
    def check_settings(cls, values: dict[str, Any]) -> None:
        if len(values) != 1:
            raise RecipeError(
                f"'{cls.name}' needs either the setting 'size' or 'tokens': "
                f"write '{cls.example()}' or '{cls.name}:tokens=1024'."
            )

    @classmethod
    def example(cls) -> str:
        return f"{cls.name}:size=8"

    @classmethod
    def variants(cls) -> tuple[str, ...]:
        return f"{cls.name}:size", f"{cls.name}:tokens"

    @property
    def variant(self) -> str:
        return f"{self.name}:{'size' if self.tokens is None else 'tokens'}"

    def apply(self, parts: Parts) -> Parts:
        if self.tokens is not None:
            return replace(parts, micro_batch_tokens=self.tokens)
        assert self.size is not None  # one of the two is always given
        return replace(parts, micro_batch_size=min(self.size, parts.batch_size))
