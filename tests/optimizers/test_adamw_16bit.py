"""AdamW with 16-bit moments against torch.optim.AdamW."""

from __future__ import annotations

from typing import Any

import torch
from optimizers.peers import parameters, set_gradients

from tightfit.ops.dropout import RandomBits, stochastic_round_bf16
from tightfit.optimizers.adamw_16bit import AdamW16

SHAPES = ((64, 33), (129,), (3, 4, 5))


def draw(shape: torch.Size) -> torch.Tensor:
    return torch.randn(shape) * 0.1


def test_updates_are_close_to_those_of_torch() -> None:
    mine, their, before = parameters(SHAPES), parameters(SHAPES), parameters(SHAPES)
    groups: Any = [{"params": mine, "weight_decay": 0.1}]
    optimizer, peer = AdamW16(groups, lr=1e-3), torch.optim.AdamW(their, lr=1e-3, weight_decay=0.1)
    for step in range(60):
        set_gradients(step, mine, their, draw=draw)
        optimizer.step()
        peer.step()
    for start, one, other in zip(before, mine, their, strict=True):
        assert (one - other).norm() <= 0.02 * (other - start).norm()
        assert not torch.equal(one, other)


def test_the_second_moment_follows_changes_below_the_precision_of_bf16() -> None:
    """A gradient that becomes ten times smaller: rounded to nearest, the moment would never change."""
    parameter = torch.nn.Parameter(torch.zeros(4096))
    optimizer, exact = AdamW16([parameter], lr=0.0), torch.zeros(())
    for step in range(2000):
        size = 1.0 if step < 1000 else 0.1
        parameter.grad = torch.full_like(parameter, size)
        optimizer.step()
        exact = 0.999 * exact + 0.001 * size**2
    found = float(optimizer.state[parameter]["exp_avg_sq"].float().mean())
    assert abs(found / float(exact) - 1) < 0.01
    assert optimizer.state[parameter]["exp_avg_sq"].dtype is torch.bfloat16


def test_stochastic_rounding_is_unbiased() -> None:
    value = 1.0 + 1 / 1024  # an eighth of the way to the next bf16 value
    rounded = stochastic_round_bf16(torch.full((200_000,), value), RandomBits(3))
    assert set(rounded.tolist()) == {1.0, 1.0078125}
    assert abs(float(rounded.mean()) - value) < 1e-4


def test_state_can_be_saved_and_loaded() -> None:
    expected, reloaded = parameters(SHAPES), parameters(SHAPES)
    first, second = AdamW16(expected, lr=0.01), AdamW16(reloaded, lr=0.01)
    for step in range(4):
        set_gradients(step, expected, reloaded, draw=draw)
        torch.manual_seed(step)
        first.step()
        torch.manual_seed(step)
        second.step()
        state, second = second.state_dict(), AdamW16(reloaded, lr=0.01)
        second.load_state_dict(state)
        assert second.state[reloaded[0]]["exp_avg_sq"].dtype is torch.bfloat16
    assert all(torch.equal(a, b) for a, b in zip(expected, reloaded, strict=True))
