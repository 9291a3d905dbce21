"""Offload the optimizer: keep its state in host memory and run its step on the CPU.

AdamW's state is twice the size of the weights, and is needed once per step, one parameter after the other. Here the
weight and gradient of a parameter are copied to host memory, the recipe's own optimizer updates them there, and the
weight is copied back: no optimizer state is on the GPU. With optimizer-in-backward the gradients are never all in
memory at once either. The cost is 12 bytes of transfer per parameter, and an optimizer step on the CPU instead of the
GPU. It is for GPUs only: on a CPU there is no separate host memory. It has been simulated, not yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic.dataclasses import dataclass

from tightfit.messages import Message, msg
from tightfit.strategies.base import OPTIMIZER, Case, Changes, MemoryKind, Result, Stage, Strategy, require_cuda
from tightfit.strategies.parts import Parts

if TYPE_CHECKING:
    import torch

    from tightfit.strategies.parts import OptimizerFactory


@dataclass(frozen=True)
class OffloadOptimizer(Strategy):
    """The recipe's optimizer, in host memory and on the CPU."""

    name: ClassVar[str] = "offload-optimizer"
    frees: ClassVar[tuple[MemoryKind, ...]] = (MemoryKind.OPTIMIZER_STATE,)
    result: ClassVar[Result] = Result.SAME
    summary: ClassVar[Message] = msg(
        "keeps the optimizer state in host memory instead of GPU memory and updates the weights on the CPU"
    )
    changes: ClassVar[Changes] = Changes.STEP

    @classmethod
    def offers(cls, case: Case) -> Sequence[Strategy]:
        return (cls(),) if case.device.kind == "cuda" and case.stage in (Stage.USUAL, Stage.SMALLEST) else ()

    def suits(self, others: Sequence[Strategy], case: Case) -> bool:
        """With the default optimizer, whose state is large; as a last resort with everything that saves memory."""
        in_backward = any(other.steps_in_backward for other in others)
        if case.stage is Stage.SMALLEST:
            return in_backward and any(other.name == "offload-activations" for other in others)
        return not in_backward and all(other.exclusive != OPTIMIZER for other in others)

    def apply(self, parts: Parts) -> Parts:
        require_cuda(self.name, parts.device)
        return parts.wrap_optimizer(_build)


def _build(inner: OptimizerFactory, groups: list[dict[str, Any]], learning_rate: float) -> torch.optim.Optimizer:
    """Build the optimizer; a module-level function, because parts are pickled for other processes."""
    from tightfit.optimizers.cpu_offload import CPUOffload

    return CPUOffload(groups, learning_rate, inner)


OffloadOptimizer.zh = {
    OffloadOptimizer.summary: "把优化器状态卸载（offload）到主机内存，不占显存；在 CPU 上更新权重",
}
