"""Truncate the texts to fewer tokens.

Activations grow with the tokens of a text, those of attention with their square. Truncation loses the end of longer
texts, so the resulting model is a different one. How much is lost depends on the lengths of the texts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from tightfit.errors import RecipeError
from tightfit.messages import Message, msg
from tightfit.strategies.base import Changes, MemoryKind, Result, Strategy
from tightfit.strategies.parts import Parts


@dataclass(frozen=True)
class MaxLength(Strategy):
    """A lower limit of tokens per text than the job's."""

    name: ClassVar[str] = "max-length"
    frees: ClassVar[tuple[MemoryKind, ...]] = (MemoryKind.ACTIVATIONS, MemoryKind.INPUTS)
    result: ClassVar[Result] = Result.DIFFERENT
    summary: ClassVar[Message] = msg("truncates texts to fewer tokens than the job's --max-length")
    changes: ClassVar[Changes] = Changes.BATCH

    tokens: int = Field(ge=2)
    """Tokens that a text is truncated to."""

    def apply(self, parts: Parts) -> Parts:
        limit = parts.batching.max_length
        if self.tokens > limit:
            raise RecipeError(
                msg(
                    "'{spec}' is more than the job's {limit} tokens: use fewer, or raise --max-length.",
                    spec=self.spec,
                    limit=limit,
                )
            )
        return replace(parts, batching=replace(parts.batching, max_length=self.tokens))


MaxLength.zh = {
    MaxLength.summary: "把文本截断到比 --max-length 更短的长度",
    "'{spec}' is more than the job's {limit} tokens: use fewer, or raise --max-length.": (
        "“{spec}”超过了 {limit} 个 token 的上限：请减小它，或调大 --max-length。"
    ),
}
