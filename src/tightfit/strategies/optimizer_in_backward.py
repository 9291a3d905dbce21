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

from dataclasses import replace
from typing import ClassVar

from pydantic.dataclasses import dataclass

from tightfit.errors import RecipeError
from tightfit.strategies.base import MemoryKind, Result, Strategy
from tightfit.strategies.parts import Parts, Precision


@dataclass(frozen=True)
class OptimizerInBackward(Strategy):
    """The optimizer step of each parameter inside the backward pass."""

    name: ClassVar[str] = "optimizer-in-backward"
    frees: ClassVar[tuple[MemoryKind, ...]] = (MemoryKind.GRADIENTS,)
    result: ClassVar[Result] = Result.CLOSE
    summary: ClassVar[str] = (
        "updates each parameter inside the backward pass and frees its gradient; clips by a running gradient norm"
    )
    steps_in_backward: ClassVar[bool] = True

    def apply(self, parts: Parts) -> Parts:
        rows = parts.micro_batch_rows
        if rows < parts.batch_size:
            raise RecipeError(
                f"'{self.name}' and 'micro-batch' clash: "
                f"a step would need {-(-parts.batch_size // rows)} backward passes. "
                f"Use chunked-layers:size={rows} instead of micro-batch."
            )
        if parts.precision is Precision.FP16:
            raise RecipeError(
                f"'{self.name}' and 'mixed-precision' in fp16 clash: the gradient scaler needs all gradients before "
                f"any parameter is updated. {_with_bf16(parts)}"
            )
        return replace(parts, optimizer_in_backward=True)


def _with_bf16(parts: Parts) -> str:
    if parts.device.bf16:
        return "Use mixed-precision:dtype=bf16."
    return f"With bf16 they can be combined, but {parts.device.label} does not support it."
