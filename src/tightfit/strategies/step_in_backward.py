"""Update each parameter inside the backward pass, the moment its gradient is complete, and forget the gradient.

A backward pass leaves a full set of gradients behind, as large as the weights, only for the optimizer to use them
one after the other. Stepped at once they never exist together. The optimizer is the recipe's own: while a parameter
is stepped it is the only one with a gradient, so the optimizer sees just that one.

Two things need all gradients together: several backward passes for one step are given up (use slice-layers in place of
slice), and clipping goes by the norm of all gradients as far as it is known. Of those that the pass has brought that
is what they are; of those still to come, what they were in the step before. So the first to come are clipped by an
estimate, and the last exactly. With --max-grad-norm 0 nothing is clipped and the result is equal to rounding.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from pydantic.dataclasses import dataclass

from tightfit.errors import RecipeError
from tightfit.strategy import Kind, Parts, Precision, Result, Strategy

if TYPE_CHECKING:
    import torch

_SQUARES = "squares_of_norms"


@dataclass(frozen=True)
class StepInBackward(Strategy):
    """No full set of gradients at any time."""

    name: ClassVar[str] = "step-in-backward"
    frees: ClassVar[tuple[Kind, ...]] = (Kind.GRADIENTS,)
    result: ClassVar[Result] = Result.CLOSE
    summary: ClassVar[str] = (
        "updates each parameter inside the backward pass; gradients are clipped by the norm as far as it is known"
    )
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
    limit, known = parts.max_grad_norm, weakref.ref(optimizer)  # what a hook holds would live as long as the parameter

    def step(number: int, parameter: torch.Tensor) -> None:
        optimizer = known()
        if optimizer is None:
            return
        assert parameter.grad is not None  # it has just arrived
        if limit:
            _clip(parameter.grad, number, _squares(optimizer, parameter.grad.device), limit)
        optimizer.step()
        parameter.grad = None

    parameters = _parameters(optimizer)
    if limit:
        _squares(optimizer, parameters[0].device)  # now, so that the first step is like all others
    for number, parameter in enumerate(parameters):
        parameter.register_post_accumulate_grad_hook(partial(step, number))


def forget_norms(optimizer: torch.optim.Optimizer) -> None:
    """Those of steps that are taken back."""
    for group in optimizer.param_groups:
        if _SQUARES in group:
            group[_SQUARES].zero_()


def _clip(gradient: torch.Tensor, number: int, squares: torch.Tensor, limit: float) -> None:
    """By the norm of all, as torch does it; without asking for numbers, for which a card would have to wait."""
    squares[number] = gradient.norm().float().square()
    gradient.mul_((limit / (squares.sum().sqrt() + 1e-6)).clamp(max=1.0))


def _squares(optimizer: torch.optim.Optimizer, device: torch.device) -> torch.Tensor:
    """Of every gradient's norm, as last seen. Kept among the settings of a group they are saved and loaded with it."""
    import torch

    group = optimizer.param_groups[0]
    if _SQUARES not in group:
        group[_SQUARES] = torch.zeros(len(_parameters(optimizer)), device=device)
    group[_SQUARES] = group[_SQUARES].to(device)  # where it was loaded it may be elsewhere
    return group[_SQUARES]


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
