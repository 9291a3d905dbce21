"""Optimizer in backward: update each parameter when its gradient is complete; clip by a running norm."""

from __future__ import annotations

import weakref
from functools import partial

import torch

_GRAD_NORMS_SQ = "grad_norms_sq"


def optimizer_in_backward(optimizer: torch.optim.Optimizer, max_grad_norm: float) -> None:
    """Update each parameter and free its gradient in every later backward pass, while the optimizer exists."""
    limit, reference = max_grad_norm, weakref.ref(optimizer)  # a hook lives as long as its parameter

    def step(index: int, parameter: torch.Tensor) -> None:
        optimizer = reference()
        if optimizer is None:
            return
        assert parameter.grad is not None  # the hook runs when it is complete
        if limit:
            _clip(parameter.grad, index, _grad_norms_sq(optimizer, parameter.grad.device), limit)
        optimizer.step()
        parameter.grad = None

    parameters = _parameters(optimizer)
    if limit:
        _grad_norms_sq(optimizer, parameters[0].device)  # allocated now, so that all steps allocate the same
    for index, parameter in enumerate(parameters):
        parameter.register_post_accumulate_grad_hook(partial(step, index))


def reset_grad_norms(optimizer: torch.optim.Optimizer) -> None:
    """Discard the recorded norms, for a run that restarts from an earlier step."""
    for group in optimizer.param_groups:
        if _GRAD_NORMS_SQ in group:
            group[_GRAD_NORMS_SQ].zero_()


def _clip(gradient: torch.Tensor, index: int, norms_sq: torch.Tensor, limit: float) -> None:
    """Clip by the norm of all gradients as torch does, without reading a value, which would synchronize the GPU."""
    norms_sq[index] = gradient.norm().float().square()
    gradient.mul_((limit / (norms_sq.sum().sqrt() + 1e-6)).clamp(max=1.0))


def _grad_norms_sq(optimizer: torch.optim.Optimizer, device: torch.device) -> torch.Tensor:
    """The last squared norm of every gradient, in a parameter group, so that checkpoints save and load it."""
    group = optimizer.param_groups[0]
    if _GRAD_NORMS_SQ not in group:
        group[_GRAD_NORMS_SQ] = torch.zeros(len(_parameters(optimizer)), device=device)
    group[_GRAD_NORMS_SQ] = group[_GRAD_NORMS_SQ].to(device)  # a checkpoint may have loaded it on another device
    return group[_GRAD_NORMS_SQ]


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
