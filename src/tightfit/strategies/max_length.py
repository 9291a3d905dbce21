"""Cut the texts shorter.

Activations grow with the tokens of a text, at the attention with their square. Cutting loses what stands
behind the cut, so the model that comes out is a different one: the strategy says how short, the data's own
lengths say what is lost.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from tightfit.errors import RecipeError
from tightfit.strategies.base import MemoryKind, Result, Strategy
from tightfit.strategies.parts import Parts


@dataclass(frozen=True)
class MaxLength(Strategy):
    """Shorter text than the job's own limit."""

    name: ClassVar[str] = "max-length"
    frees: ClassVar[tuple[MemoryKind, ...]] = (MemoryKind.ACTIVATIONS, MemoryKind.INPUTS)
    result: ClassVar[Result] = Result.DIFFERENT
    summary: ClassVar[str] = "cuts the texts shorter than the job says"
    batch_only: ClassVar[bool] = True

    tokens: int = Field(ge=2)
    """Tokens a text is cut at."""

    def apply(self, parts: Parts) -> Parts:
        if self.tokens > parts.max_length:
            raise RecipeError(
                f"'{self.spec}' is longer than the job's own {parts.max_length} tokens: "
                f"choose fewer, or raise --max-length."
            )
        return replace(parts, max_length=self.tokens)
