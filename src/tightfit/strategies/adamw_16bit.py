"""AdamW with half the memory for what it remembers.

AdamW keeps two numbers of four bytes for every parameter, twice the weights. Two bytes each are enough if the second
one is rounded by chance, so that small changes are not lost: 4 bytes a parameter instead of 8. Unlike Adafactor it
keeps both moments of every single parameter. The results are close to AdamW's, not equal.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic.dataclasses import dataclass

from tightfit.strategies.base import MemoryKind, Result, Strategy
from tightfit.strategies.parts import Parts

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class AdamW16Bit(Strategy):
    """AdamW with moments in bf16, the second rounded by chance."""

    name: ClassVar[str] = "adamw-16bit"
    frees: ClassVar[tuple[MemoryKind, ...]] = (MemoryKind.OPTIMIZER_STATE,)
    result: ClassVar[Result] = Result.CLOSE
    summary: ClassVar[str] = "keeps the moments of AdamW in 16 bits, the second one rounded by chance"
    exclusive: ClassVar[str | None] = "optimizer"
    step_only: ClassVar[bool] = True

    def apply(self, parts: Parts) -> Parts:
        return replace(parts, optimizer=self.build)

    def build(self, groups: list[dict[str, Any]], learning_rate: float) -> torch.optim.Optimizer:
        """Make the optimizer over parameter groups."""
        from tightfit.optimizers.adamw_16bit import AdamW16

        return AdamW16(groups, lr=learning_rate)
