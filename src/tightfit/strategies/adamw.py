"""AdamW: the default optimizer, with two values of state per parameter, 8 bytes.

It saves no memory; it is a strategy so that a recipe can name it. It is fused where torch has a fused kernel for the
device: the same update in one pass over memory, without temporary copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic.dataclasses import dataclass

from tightfit.compat import use_cuda_only_on_gpu
from tightfit.messages import Message, msg
from tightfit.strategies.base import Case, MemoryKind, Result, Strategy
from tightfit.strategies.optimizer import OptimizerStrategy

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class AdamW(OptimizerStrategy):
    """The default optimizer."""

    name: ClassVar[str] = "adamw"
    frees: ClassVar[tuple[MemoryKind, ...]] = ()
    result: ClassVar[Result] = Result.SAME
    summary: ClassVar[Message] = msg(
        "is the default optimizer; name it to pin it or to turn off its fused kernel (fused=false)"
    )

    fused: bool = True
    """Use torch's fused kernel where there is one."""

    @classmethod
    def offers(cls, case: Case) -> Sequence[Strategy]:
        return ()  # a recipe without an optimizer has it

    def build(self, groups: list[dict[str, Any]], learning_rate: float) -> torch.optim.Optimizer:
        optimizer = self._build(groups, learning_rate)
        use_cuda_only_on_gpu(optimizer)
        return optimizer

    def _build(self, groups: list[dict[str, Any]], learning_rate: float) -> torch.optim.Optimizer:
        import torch

        if self.fused:
            try:
                return torch.optim.AdamW(groups, lr=learning_rate, fused=True)
            except RuntimeError:  # torch has no fused kernel for this device or dtype
                pass
        return torch.optim.AdamW(groups, lr=learning_rate, foreach=False)


AdamW.zh = {
    AdamW.summary: "默认优化器，通常不必指定，除非要固定使用它或关闭 fused kernel（fused=false）",
}
