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

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from tightfit.errors import RecipeError
from tightfit.messages import Message, msg
from tightfit.strategies.base import Case, Changes, MemoryKind, Result, Stage, Strategy
from tightfit.strategies.parts import Parts


@dataclass(frozen=True)
class MicroBatch(Strategy):
    """Gradient accumulation with exactly the gradients of the whole batch."""

    name: ClassVar[str] = "micro-batch"
    frees: ClassVar[tuple[MemoryKind, ...]] = (MemoryKind.ACTIVATIONS,)
    result: ClassVar[Result] = Result.SAME
    summary: ClassVar[Message] = msg(
        "splits the batch into micro-batches, by rows or tokens, and accumulates the exact gradient of the whole batch"
    )
    exclusive: ClassVar[str | None] = "micro-batch"
    changes: ClassVar[Changes] = Changes.BATCH

    size: int | None = Field(default=None, ge=1)
    """Rows per micro-batch."""
    tokens: int | None = Field(default=None, ge=1)
    """Tokens per micro-batch, padding included; a longer text is a micro-batch of its own."""

    @classmethod
    def check_settings(cls, values: dict[str, Any]) -> None:
        if len(values) != 1:
            raise RecipeError(
                msg(
                    "'{name}' needs either the setting 'size' or 'tokens': write '{example}' or '{name}:tokens=1024'.",
                    name=cls.name,
                    example=cls.example(),
                )
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

    @classmethod
    def offers(cls, case: Case) -> Sequence[Strategy]:
        """By tokens, as small as by rows and faster; by rows if the user avoids tokens."""
        if case.stage >= Stage.FEWER_PARAMETERS:
            return (cls(size=-(-case.batch_size // 8)),)
        if case.stage is not Stage.USUAL:
            return ()
        if f"{cls.name}:tokens" in case.avoided:
            return [cls(size=size) for size in _halving(case.batch_size)]
        return [cls(tokens=size * case.longest) for size in _halving(case.batch_size)]

    def apply(self, parts: Parts) -> Parts:
        batching = replace(parts.batching, micro_batch_size=self.size, micro_batch_tokens=self.tokens)
        return replace(parts, batching=batching)


def _halving(batch: int) -> list[int]:
    """Half the batch, a quarter of it, and so on down to one row."""
    sizes = []
    while batch > 1:
        batch = -(-batch // 2)
        sizes.append(batch)
    return sizes


MicroBatch.zh = {
    MicroBatch.summary: "把批次按样本数（size）或 token 数（tokens）拆成微批次做梯度累积，梯度与整批计算一致",
    "'{name}' needs either the setting 'size' or 'tokens': write '{example}' or '{name}:tokens=1024'.": (
        "“{name}”需要配置项 size 或 tokens，二者选一：请写成“{example}”或“{name}:tokens=1024”。"
    ),
}
