"""Weight gradients of chunks accumulated in place: the same sum, one allocation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tightfit.ops.grad_accumulation import accumulate_in_place

CHUNKS = 3


class Block(torch.nn.Module):
    def __init__(self, calls: int = 1) -> None:
        super().__init__()
        self.linear, self.calls = torch.nn.Linear(6, 6), calls

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        for _ in range(self.calls):
            states = self.linear(states)
        return states


def gradients(block: Block, *, in_place: bool) -> list[torch.Tensor]:
    block.zero_grad()
    linears = accumulate_in_place([block]) if in_place else []
    assert len(linears) == int(in_place)
    for linear in linears:
        linear.start_batch(CHUNKS)
    states = (torch.arange(CHUNKS * 24.0).view(CHUNKS, 4, 6) / 10).requires_grad_()
    torch.cat([block(chunk.unsqueeze(0)) for chunk in states]).square().sum().backward()
    return [p.grad.clone() for p in block.parameters() if p.grad is not None]


class CountProducts(TorchDispatchMode):
    """Counts the matrix products that allocate memory of a weight's shape."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape, self.made = shape, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.mm.default and out.shape == self.shape:
            self.made += 1
        return out


@pytest.mark.parametrize("calls", [1, 2], ids=["once", "twice in a chunk"])
def test_the_sum_equals_that_of_autograd(calls: int) -> None:
    block = Block(calls)
    expected = gradients(block, in_place=False)
    for _ in range(2):  # the second batch starts a new sum
        for found, wanted in zip(gradients(block, in_place=True), expected, strict=True):
            assert torch.allclose(found, wanted, rtol=1e-5)
        block.linear.__dict__.pop("forward")


@pytest.mark.parametrize(("calls", "made"), [(1, 1), (2, 2 * CHUNKS)], ids=["once", "twice in a chunk"])
def test_memory_for_the_sum_is_allocated_once(calls: int, made: int) -> None:
    """A weight that a chunk uses twice is left to autograd."""
    with CountProducts((6, 6)) as products:
        gradients(Block(calls), in_place=True)
    assert products.made == made


def test_a_linear_layer_with_a_replaced_forward_is_left_alone() -> None:
    block = Block()
    block.linear.forward = lambda states: 2 * states  # type: ignore[method-assign]
    assert not accumulate_in_place([block])


def test_frozen_weights_get_no_gradient() -> None:
    block = Block()
    block.linear.weight.requires_grad_(False)
    (bias,) = gradients(block, in_place=True)
    assert bias.shape == (6,)
