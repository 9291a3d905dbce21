"""Gradients of pieces added up where they are: the same sum, in one room."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tightfit.ops.chunked_linear import accumulate_in_place

PIECES = 3


class Block(torch.nn.Module):
    def __init__(self, calls: int = 1) -> None:
        super().__init__()
        self.linear, self.calls = torch.nn.Linear(6, 6), calls

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        for _ in range(self.calls):
            states = self.linear(states)
        return states


def gradients(block: Block, *, summed: bool) -> list[torch.Tensor]:
    block.zero_grad()
    linears = accumulate_in_place([block]) if summed else []
    assert len(linears) == int(summed)
    for linear in linears:
        linear.begin(PIECES)
    states = (torch.arange(PIECES * 24.0).view(PIECES, 4, 6) / 10).requires_grad_()
    torch.cat([block(chunk.unsqueeze(0)) for chunk in states]).square().sum().backward()
    return [p.grad.clone() for p in block.parameters() if p.grad is not None]


class Products(TorchDispatchMode):
    """How often new memory of a weight's shape is made by a product."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape, self.made = shape, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.mm.default and out.shape == self.shape:
            self.made += 1
        return out


@pytest.mark.parametrize("calls", [1, 2], ids=["once", "twice in a piece"])
def test_the_sum_is_that_of_autograd(calls: int) -> None:
    block = Block(calls)
    expected = gradients(block, summed=False)
    for _ in range(2):  # the second batch begins anew
        for found, wanted in zip(gradients(block, summed=True), expected, strict=True):
            assert torch.allclose(found, wanted, rtol=1e-5)
        block.linear.__dict__.pop("forward")


@pytest.mark.parametrize(("calls", "made"), [(1, 1), (2, 2 * PIECES)], ids=["once", "twice in a piece"])
def test_room_is_made_once(calls: int, made: int) -> None:
    """A weight that a piece meets twice is left to autograd."""
    with Products((6, 6)) as products:
        gradients(Block(calls), summed=True)
    assert products.made == made


def test_what_another_has_changed_is_left_alone() -> None:
    block = Block()
    block.linear.forward = lambda states: 2 * states  # type: ignore[method-assign]
    assert not accumulate_in_place([block])


def test_frozen_weights_have_no_sum() -> None:
    block = Block()
    block.linear.weight.requires_grad_(False)
    (bias,) = gradients(block, summed=True)
    assert bias.shape == (6,)
