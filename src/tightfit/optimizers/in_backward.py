"""Stepping each parameter inside the backward pass, with gradient clipping by the norm as far as it is known."""

from __future__ import annotations

import weakref
from functools import partial

import torch

_SQUARES = "grad_norms_sq"


def step_in_backward(optimizer: torch.optim.Optimizer, max_grad_norm: float) -> None:
    """From now on every gradient is used up when it arrives, as long as the optimizer is there."""
    limit, known = max_grad_norm, weakref.ref(optimizer)  # what a hook holds would live as long as the parameter

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
    group = optimizer.param_groups[0]
    if _SQUARES not in group:
        group[_SQUARES] = torch.zeros(len(_parameters(optimizer)), device=device)
    group[_SQUARES] = group[_SQUARES].to(device)  # where it was loaded it may be elsewhere
    return group[_SQUARES]


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
