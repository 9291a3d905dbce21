"""The same parameters and gradients for an optimizer and its reference implementation."""

from __future__ import annotations

from collections.abc import Callable

import torch

Shapes = tuple[tuple[int, ...], ...]


def parameters(shapes: Shapes) -> list[torch.nn.Parameter]:
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]


def set_gradients(
    step: int, *sets: list[torch.nn.Parameter], draw: Callable[[torch.Size], torch.Tensor] = torch.randn
) -> None:
    torch.manual_seed(step)
    for same in zip(*sets, strict=True):
        gradient = draw(same[0].shape)
        for parameter in same:
            parameter.grad = gradient.clone()


def check_state_round_trip(
    build: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer],
    shapes: Shapes,
    draw: Callable[[torch.Size], torch.Tensor] = torch.randn,
) -> tuple[torch.optim.Optimizer, torch.nn.Parameter]:
    """Saving and loading the state after each step changes nothing; returns the optimizer and a parameter."""
    expected, reloaded = parameters(shapes), parameters(shapes)
    first, second = build(expected), build(reloaded)
    for step in range(4):
        set_gradients(step, expected, reloaded, draw=draw)
        first.step()
        second.step()
        state, second = second.state_dict(), build(reloaded)
        second.load_state_dict(state)
    assert all(torch.equal(a, b) for a, b in zip(expected, reloaded, strict=True))
    return second, reloaded[0]


def check_gradients_unchanged(
    build: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer],
    shapes: Shapes,
    draw: Callable[[torch.Size], torch.Tensor] = torch.randn,
) -> None:
    mine = parameters(shapes)
    set_gradients(1, mine, draw=draw)
    before = [parameter.grad.clone() for parameter in mine if parameter.grad is not None]
    build(mine).step()
    assert all(torch.equal(parameter.grad, old) for parameter, old in zip(mine, before, strict=True))
