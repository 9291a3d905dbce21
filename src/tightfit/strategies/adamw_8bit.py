"""AdamW with a quarter of the optimizer state.

AdamW keeps two fp32 values per parameter. One byte each is enough if every 256 values share a scale and the 256 values
that a byte can represent are spaced closely near zero: 2 bytes a parameter instead of 8. Like adamw-16bit it keeps both
moments of every single parameter; the results are close to AdamW's, not equal. The arithmetic is bitsandbytes', an
optional package: pip install bitsandbytes. It is fast on GPUs; on a CPU it is the slowest of the optimizers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic.dataclasses import dataclass

from tightfit.errors import RecipeError
from tightfit.messages import Message, msg
from tightfit.ops.fake import real_tensors
from tightfit.strategies.base import MemoryKind, Result
from tightfit.strategies.optimizer import OptimizerStrategy
from tightfit.strategies.parts import Parts

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class AdamW8Bit(OptimizerStrategy):
    """AdamW with moments in 8 bits, by bitsandbytes."""

    name: ClassVar[str] = "adamw-8bit"
    frees: ClassVar[tuple[MemoryKind, ...]] = (MemoryKind.OPTIMIZER_STATE,)
    result: ClassVar[Result] = Result.CLOSE
    summary: ClassVar[Message] = msg("stores AdamW's moments in 8 bits (needs the package bitsandbytes)")
    requires: ClassVar[str | None] = "bitsandbytes"

    def apply(self, parts: Parts) -> Parts:
        if not self.is_available():
            raise RecipeError(
                msg(
                    "'{name}' needs the package {package}: pip install {package}.",
                    name=self.name,
                    package=self.requires,
                )
            )
        return super().apply(parts)

    def build(self, groups: list[dict[str, Any]], learning_rate: float) -> torch.optim.Optimizer:
        with real_tensors():  # a library's own constants are not part of a simulation
            self.import_requirements()
            from tightfit.optimizers.adamw_8bit import AdamW8
        return AdamW8(groups, lr=learning_rate)


AdamW8Bit.zh = {
    AdamW8Bit.summary: "AdamW 的状态用 8 位存储（需要 bitsandbytes）",
    "'{name}' needs the package {package}: pip install {package}.": (
        "“{name}”需要安装 {package}：pip install {package}。"
    ),
}
