"""AdamW with half the optimizer state.

AdamW keeps two fp32 values per parameter, twice the size of the weights. Two bytes each are enough if the second moment
is rounded stochastically, so that small changes are not lost: 4 bytes a parameter instead of 8. Unlike Adafactor it
keeps both moments of every single parameter. The results are close to AdamW's, not equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic.dataclasses import dataclass

from tightfit.messages import Message, msg
from tightfit.strategies.base import MemoryKind, Result
from tightfit.strategies.optimizer import OptimizerStrategy

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class AdamW16Bit(OptimizerStrategy):
    """AdamW with moments in bf16, the second with stochastic rounding."""

    name: ClassVar[str] = "adamw-16bit"
    frees: ClassVar[tuple[MemoryKind, ...]] = (MemoryKind.OPTIMIZER_STATE,)
    result: ClassVar[Result] = Result.CLOSE
    summary: ClassVar[Message] = msg("stores AdamW's moments in bf16, the second with stochastic rounding")

    def build(self, groups: list[dict[str, Any]], learning_rate: float) -> torch.optim.Optimizer:
        from tightfit.optimizers.adamw_16bit import AdamW16

        return AdamW16(groups, lr=learning_rate)


AdamW16Bit.zh = {
    AdamW16Bit.summary: "AdamW 的状态用 bf16 存储，其中二阶矩采用随机舍入",
}
