"""AdamW with a quarter of the memory for what it remembers.

AdamW keeps two numbers of four bytes for every parameter. A byte each is enough if every 256 numbers share a scale and
the 256 values that a byte can name lie close together near zero: 2 bytes a parameter instead of 8. Like adamw-16bit it
keeps both moments of every single parameter; the results are close to AdamW's, not equal. The arithmetic is
bitsandbytes', an extra package: pip install bitsandbytes. Fast on cards; on a CPU it is the slowest of the optimizers.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic.dataclasses import dataclass

from tightfit.errors import RecipeError
from tightfit.strategies.base import MemoryKind, Result, Strategy
from tightfit.strategies.parts import Parts

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class AdamW8Bit(Strategy):
    """AdamW with moments in 8 bits, by bitsandbytes."""

    name: ClassVar[str] = "adamw-8bit"
    frees: ClassVar[tuple[MemoryKind, ...]] = (MemoryKind.OPTIMIZER_STATE,)
    result: ClassVar[Result] = Result.CLOSE
    summary: ClassVar[str] = "keeps the moments of AdamW in 8 bits; needs the package bitsandbytes"
    exclusive: ClassVar[str | None] = "optimizer"
    step_only: ClassVar[bool] = True
    needs: ClassVar[str | None] = "bitsandbytes"

    @classmethod
    def load(cls) -> None:
        """bitsandbytes warns that kernels for weights of 4 bits are missing, which nobody asked for."""
        logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
        super().load()

    def apply(self, parts: Parts) -> Parts:
        if not self.is_available():
            raise RecipeError(f"'{self.name}' needs the package {self.needs}: pip install {self.needs}.")
        return replace(parts, optimizer=self.build)

    def build(self, groups: list[dict[str, Any]], learning_rate: float) -> torch.optim.Optimizer:
        """Make the optimizer over parameter groups."""
        from tightfit.ops.fake import real_tensors

        with real_tensors():  # tensors that a library makes for good are no part of a rehearsal
            self.load()
            from tightfit.optimizers.adamw_8bit import AdamW8
        return AdamW8(groups, lr=learning_rate)
