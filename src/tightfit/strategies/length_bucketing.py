"""Length bucketing: put rows of similar length into the same batch.

A batch is padded to its longest row, and padding is computed like text. In random order almost every batch has a long
row. Here the rows of several batches are drawn at random, sorted by length and split into batches, and the batches are
shuffled again: there is little padding, and a step takes less time. The largest batch is as large as before, so the
peak does not change. The batches hold other rows than those of the baseline, so the result is close, not the same. Rows
of similar length resemble each other in other ways too (long reviews are more often complaints), so batches differ more
from each other. In a short run this hurts optimizers that average gradients over many steps, and plans combine it with
Adafactor only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from tightfit.messages import Message, msg
from tightfit.strategies.base import Case, Changes, MemoryKind, Result, Stage, Strategy
from tightfit.strategies.optimizer import OptimizerStrategy
from tightfit.strategies.parts import Parts


@dataclass(frozen=True)
class LengthBucketing(Strategy):
    """Length bucketing like `group_by_length` in transformers, in an order that is known before training starts."""

    name: ClassVar[str] = "length-bucketing"
    frees: ClassVar[tuple[MemoryKind, ...]] = ()
    result: ClassVar[Result] = Result.CLOSE
    summary: ClassVar[Message] = msg("puts rows of similar length into the same batch: less padding, less time")
    changes: ClassVar[Changes] = Changes.BATCH

    pool: int = Field(default=50, ge=2)
    """Batches whose rows are sorted by length together."""

    @classmethod
    def offers(cls, case: Case) -> Sequence[Strategy]:
        averaging = any(isinstance(s, OptimizerStrategy) and s.averages_gradients for s in case.pinned)
        return (cls(),) if case.stage < Stage.FEWER_PARAMETERS and not averaging else ()

    def suits(self, others: Sequence[Strategy], case: Case) -> bool:
        """It lowers the F1 of optimizers with a long moving average (docs/log.md): combined only if both are pinned."""
        return any(isinstance(s, OptimizerStrategy) and not s.averages_gradients for s in others)

    def apply(self, parts: Parts) -> Parts:
        return replace(parts, batching=replace(parts.batching, bucket_batches=self.pool))


LengthBucketing.zh = {
    LengthBucketing.summary: "把长度相近的样本组成同一批（分桶），减少填充（padding），缩短用时",
}
