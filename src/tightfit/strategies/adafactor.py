"""Adafactor: optimizer state per row and column instead of per parameter.

AdamW keeps two values per parameter. Adafactor keeps one per row and one per column of each weight matrix, from which
it reconstructs the second moment, and no first moment at all: next to no optimizer state. It clips its own updates.
The results are close to AdamW's, not equal.
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
class Adafactor(OptimizerStrategy):
    """Adafactor with the user's learning rate, as `optim="adafactor"` in transformers."""

    name: ClassVar[str] = "adafactor"
    frees: ClassVar[tuple[MemoryKind, ...]] = (MemoryKind.OPTIMIZER_STATE,)
    result: ClassVar[Result] = Result.CLOSE
    averages_gradients: ClassVar[bool] = False
    summary: ClassVar[Message] = msg(
        "stores second moments per row and column of each weight matrix, and no first moment"
    )

    def build(self, groups: list[dict[str, Any]], learning_rate: float) -> torch.optim.Optimizer:
        from tightfit.optimizers.adafactor import Adafactor as Optimizer

        return Optimizer(groups, lr=learning_rate)


Adafactor.zh = {
    Adafactor.summary: "二阶矩按权重矩阵的行和列分解存储，不保存一阶矩",
}
