"""Keep what the optimizer remembers in the memory of the machine, and let its processor take the step.

AdamW remembers twice the weights, and needs it once a step, one parameter after the other. Here weight and gradient of
a parameter go to host memory, the recipe's own optimizer steps them there, and the weight comes back: nothing is
remembered on the card. With optimizer-in-backward gradients never exist together either. The price is 12 bytes a parameter
on the way, and a processor's step in place of a card's. It is for cards. Rehearsed, not yet run on one.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic.dataclasses import dataclass

from tightfit.strategies.base import MemoryKind, Result, Strategy, require_cuda
from tightfit.strategies.parts import Parts

if TYPE_CHECKING:
    import torch

    from tightfit.strategies.parts import OptimizerFactory


@dataclass(frozen=True)
class OffloadOptimizer(Strategy):
    """The recipe's optimizer, in host memory."""

    name: ClassVar[str] = "offload-optimizer"
    frees: ClassVar[tuple[MemoryKind, ...]] = (MemoryKind.OPTIMIZER_STATE,)
    result: ClassVar[Result] = Result.SAME
    summary: ClassVar[str] = "lets the optimizer remember and step in the machine's own memory, not on the card"
    cards_only: ClassVar[bool] = True
    step_only: ClassVar[bool] = True

    def apply(self, parts: Parts) -> Parts:
        require_cuda(self.name, parts.device)
        return replace(parts, optimizer=partial(_build, parts.optimizer))


def _build(inner: OptimizerFactory, groups: list[dict[str, Any]], learning_rate: float) -> torch.optim.Optimizer:
    """A function of the module, because plays go from process to process."""
    from tightfit.optimizers.cpu_offload import CPUOffload

    return CPUOffload(groups, learning_rate, inner)
