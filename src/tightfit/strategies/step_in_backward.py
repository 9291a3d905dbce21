"""Update each parameter inside the backward pass, the moment its gradient is complete, and forget the gradient.

A backward pass leaves a full set of gradients behind, as large as the weights, only for the optimizer to use them
one after the other. Stepped at once they never exist together. The optimizer is the recipe's own: while a parameter
is stepped it is the only one with a gradient, so the optimizer sees just that one.

Two things need all gradients together and are given up: several backward passes for one step (use slice-layers
in place of slice), and clipping by the norm of all gradients. Each gradient is clipped by its own norm instead;
with --max-grad-norm 0 nothing is clipped and the result is equal to rounding.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from pydantic.dataclasses import dataclass

from tightfit.errors import RecipeError
from tightfit.strategy import Kind, Parts, Precision, Result, Strategy

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class StepInBackward(Strategy):
    """No full set of gradients at any time."""

    name: ClassVar[str] = "step-in-backward"
    frees: ClassVar[tuple[Kind, ...]] = (Kind.GRADIENTS,)
    result: ClassVar[Result] = Result.CLOSE
    summary: ClassVar[str] = "updates each parameter inside the backward pass; gradients are clipped one by one"
    steps_in_pass: ClassVar[bool] = True

    def apply(self, parts: Parts) -> Parts:
        rows = parts.step_rows
        if rows < parts.batch_size:
            raise RecipeError(
                f"'{self.name}' and slices clash: a step would need {-(-parts.batch_size // rows)} backward passes. "
                f"Use slice-layers:size={rows} in their place."
            )
        if parts.precision is Precision.FP16:
            raise RecipeError(
                f"'{self.name}' and mixed-precision in fp16 clash: scaled gradients cannot be stepped one by one. "
                "Use mixed-precision:dtype=bf16 where the device has it, or leave one of them out."
            )
        return replace(parts, step_in_backward=True)


def step_in_backward(parts: Parts, optimizer: torch.optim.Optimizer) -> None:
    """From now on every gradient is used up when it arrives, as long as the optimizer is there."""
    import torch

    limit, known = parts.max_grad_norm, weakref.ref(optimizer)  # what a hook holds would live as long as the parameter

    def step(parameter: torch.Tensor) -> None:
        optimizer = known()
        if optimizer is None:
            return
        if limit:
            torch.nn.utils.clip_grad_norm_([parameter], limit)
        optimizer.step()
        parameter.grad = None

    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.register_post_accumulate_grad_hook(step)
