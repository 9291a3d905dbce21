"""Optimizer in backward: update each parameter as soon as its gradient is complete, and free the gradient.

A backward pass leaves a full set of gradients, as large as the weights, only for the optimizer to use them one after
the other. Stepped inside the backward pass, they never exist all together. The optimizer is the recipe's own: while a
parameter is stepped it is the only one with a gradient, so the optimizer updates just that one.

Two things need all gradients together. Several backward passes per step are not possible: use chunked-layers instead of
micro-batch. Gradient clipping uses a running norm of all gradients: for those that the pass has computed it is their
norm, for those still to come their norm in the step before. So the first gradients of a pass are clipped by an
estimate, and the last exactly. With --max-grad-norm 0 nothing is clipped and the result is equal to rounding.
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
                f"'{self.name}' and mixed-precision in fp16 clash: scaled gradients cannot be stepped one by one. "
                "Use mixed-precision:dtype=bf16 where the device has it, or leave one of them out."
            )
        return replace(parts, optimizer_in_backward=True)
