"""Let texts of like length meet in a batch.

A batch is padded to its longest text, and padding is computed like text. When rows meet by chance almost every batch
has a long one. Here some batches' worth of rows is drawn by chance, sorted by length and cut into batches, and
the batches are shuffled again: little is padded, and the step takes less time. The largest batch is not smaller than
before, so the peak stays. Other rows meet than in the plain training: the result is close to it, not the same. Texts of
like length are alike otherwise too (long reviews complain), so batches differ more from each other; optimizers with a
long memory mind that in a short training, and plans take it beside Adafactor only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from tightfit.strategies.base import MemoryKind, Result, Strategy
from tightfit.strategies.parts import Parts


@dataclass(frozen=True)
class Bucket(Strategy):
    """Length bucketing, as `group_by_length` in transformers, in an order that is known beforehand."""

    name: ClassVar[str] = "length-bucketing"
    frees: ClassVar[tuple[MemoryKind, ...]] = ()
    result: ClassVar[Result] = Result.CLOSE
    summary: ClassVar[str] = "lets texts of like length meet in a batch: less padding, less time"
    batch_only: ClassVar[bool] = True

    pool: int = Field(default=50, ge=2)
    """How many batches are sorted by length together."""

    def apply(self, parts: Parts) -> Parts:
        return replace(parts, pool=self.pool)
