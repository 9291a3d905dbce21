"""The same parameters and gradients for an optimizer and its peer."""

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
