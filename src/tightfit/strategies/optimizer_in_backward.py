"""Update each parameter inside the backward pass, the moment its gradient is complete, and forget the gradient.

A backward pass leaves a full set of gradients behind, as large as the weights, only for the optimizer to use them
one after the other. Stepped at once they never exist together. The optimizer is the recipe's own: while a parameter
is stepped it is the only one with a gradient, so the optimizer sees just that one.

Two things need all gradients together: several backward passes for one step are given up (use chunked-layers in place of
slice), and clipping goes by the norm of all gradients as far as it is known. Of those that the pass has brought that
is what they are; of those still to come, what they were in the step before. So the first to come are clipped by an
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
class StepInBackward(Strategy):
    """No full set of gradients at any time."""

    name: ClassVar[str] = "optimizer-in-backward"
    frees: ClassVar[tuple[MemoryKind, ...]] = (MemoryKind.GRADIENTS,)
    result: ClassVar[Result] = Result.CLOSE
    summary: ClassVar[str] = (
        "updates each parameter inside the backward pass; gradients are clipped by the norm as far as it is known"
    )
    steps_in_backward: ClassVar[bool] = True

    def apply(self, parts: Parts) -> Parts:
        rows = parts.micro_batch_rows
        if rows < parts.batch_size:
            raise RecipeError(
                f"'{self.name}' and slices clash: a step would need {-(-parts.batch_size // rows)} backward passes. "
                f"Use chunked-layers:size={rows} in their place."
            )
        if parts.precision is Precision.FP16:
            raise RecipeError(
                f"'{self.name}' and mixed-precision in fp16 clash: scaled gradients cannot be stepped one by one. "
                "Use mixed-precision:dtype=bf16 where the device has it, or leave one of them out."
            )
        return replace(parts, step_in_backward=True)
