"""Optimizer in backward: update each parameter as soon as its gradient is complete, and free the gradient.

A backward pass leaves a full set of gradients, as large as the weights, only for the optimizer to use them one after
the other. If parameters are updated inside the backward pass, the gradients are never all in memory at once. The
optimizer is the recipe's own: during its update a parameter is the only one with a gradient, so the optimizer updates
just that one.

This has two consequences. Several backward passes per step are not possible: use chunked-layers instead of micro-batch.
Gradient clipping uses a running norm: for gradients that the pass has computed it is their norm, for the others their
norm in the step before. So the first gradients of a pass are clipped by an estimate, and the last exactly. With
--max-grad-norm 0 nothing is clipped and the result is equal up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from pydantic.dataclasses import dataclass

from tightfit.errors import RecipeError
from tightfit.messages import Message, msg
from tightfit.strategies.base import OPTIMIZER, Case, Changes, MemoryKind, Result, Stage, Strategy
from tightfit.strategies.length_bucketing import LengthBucketing
from tightfit.strategies.parts import Parts, Precision

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class OptimizerInBackward(Strategy):
    """The optimizer step of each parameter inside the backward pass."""

    name: ClassVar[str] = "optimizer-in-backward"
    frees: ClassVar[tuple[MemoryKind, ...]] = (MemoryKind.GRADIENTS,)
    result: ClassVar[Result] = Result.CLOSE
    summary: ClassVar[Message] = msg(
        "updates each parameter inside the backward pass and frees its gradient; clips by a running gradient norm"
    )
    changes: ClassVar[Changes] = Changes.GRADIENTS | Changes.STEP

    @classmethod
    def offers(cls, case: Case) -> Sequence[Strategy]:
        return (cls(),) if case.stage < Stage.FEWER_PARAMETERS else ()

    def suits(self, others: Sequence[Strategy], case: Case) -> bool:
        """With the least optimizer state, since the gradients that it frees are smaller than AdamW's state.

        It runs the whole batch at once: where there is no GPU, only with recomputation. Without micro-batches, padding
        is trimmed only by length bucketing, so it is used wherever it suits the optimizer.
        """
        optimizer = next((other for other in others if other.exclusive == OPTIMIZER), None)
        if optimizer != case.leanest_optimizer or (optimizer is None and case.stage is Stage.USUAL):
            return False
        bucketing = [o for o in case.offered if isinstance(o, LengthBucketing) and o.suits(others, case)]
        return all(bucket in others for bucket in bucketing) and self._suits_pass(others, case)

    def _suits_pass(self, others: Sequence[Strategy], case: Case) -> bool:
        """Whether the rest of the recipe runs the whole batch in one backward pass, in little memory."""
        parts = {other.exclusive for other in others}
        fits_whole = case.device.kind != "cpu" and case.stage is Stage.USUAL
        return "micro-batch" not in parts and ("recomputation" in parts or fits_whole)

    def apply(self, parts: Parts) -> Parts:
        rows, batch_size = parts.step_batching.micro_batch_rows, parts.batching.batch_size
        if rows < batch_size:
            raise RecipeError(
                msg(
                    "'{name}' and 'micro-batch' clash: a step would need {count} backward passes. "
                    "Use chunked-layers:size={rows} instead of micro-batch.",
                    name=self.name,
                    count=-(-batch_size // rows),
                    rows=rows,
                )
            )
        if parts.precision is Precision.FP16:
            raise RecipeError(
                msg(
                    "'{name}' and 'mixed-precision' in fp16 clash: the gradient scaler needs all gradients before any "
                    "parameter is updated. {suggestion}",
                    name=self.name,
                    suggestion=_with_bf16(parts),
                )
            )
        return replace(parts, stepping=InBackward())


class InBackward:
    """Each parameter is updated in the backward pass, as soon as its gradient is complete."""

    in_backward = True

    def prepare(self, optimizer: torch.optim.Optimizer, max_grad_norm: float) -> None:
        from tightfit.optimizers.in_backward import optimizer_in_backward

        optimizer_in_backward(optimizer, max_grad_norm)


def _with_bf16(parts: Parts) -> Message:
    if parts.device.bf16:
        return msg("Use mixed-precision:dtype={dtype}.", dtype="bf16")
    return msg("With bf16 they can be combined, but {device} does not support it.", device=parts.device.label)


OptimizerInBackward.zh = {
    OptimizerInBackward.summary: (
        "在反向传播过程中更新每个参数并立即释放其梯度；梯度裁剪按估计的全局范数进行（尚未算出的部分沿用上一步的值）"
    ),
    "'{name}' and 'micro-batch' clash: a step would need {count} backward passes. Use "
    "chunked-layers:size={rows} instead of micro-batch.": (
        "“{name}”与“micro-batch”冲突：每步需要 {count} 次反向传播。请把 micro-batch 换成 chunked-layers:size={rows}。"
    ),
    "'{name}' and 'mixed-precision' in fp16 clash: the gradient scaler needs all gradients before any "
    "parameter is updated. {suggestion}": (
        "“{name}”与 fp16 的“mixed-precision”冲突：梯度缩放器（GradScaler）要等全部梯度算完才能更新参数。{suggestion}"
    ),
    "With bf16 they can be combined, but {device} does not support it.": (
        "用 bf16 时二者可以组合，但 {device} 不支持 bf16。"
    ),
}
