"""AdamW with 8-bit moments against bitsandbytes' own and torch's."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from memory import LiveBytes
from optimizers.peers import check_gradients_are_left, parameters, set_gradients, torn_as_whole

pytest.importorskip("bitsandbytes")
import bitsandbytes

import tightfit.optimizers.adamw_8bit as ours
from tightfit.optimizers.adamw_8bit import AdamW8
from tightfit.simulation.kernels.cpu import scratch
from tightfit.strategies.recipe import parse_strategy

SHAPES = ((96, 133), (129,), (3, 40, 50))


def draw(shape: torch.Size) -> torch.Tensor:
    return torch.randn(shape) * 0.1


@pytest.mark.parametrize("chunk", [256, 1024, 1 << 20])
def test_parameters_move_as_with_bitsandbytes(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit, whatever the piece: no block of numbers with one scale is torn."""
    monkeypatch.setitem(ours._PIECE, "cpu", chunk)
    mine, their = parameters(SHAPES), parameters(SHAPES)
    groups: Any = [{"params": mine, "weight_decay": 0.1}]
    optimizer, peer = AdamW8(groups, lr=1e-3), bitsandbytes.optim.AdamW8bit(their, lr=1e-3, weight_decay=0.1)
    for step in range(5):
        set_gradients(step, mine, their, draw=draw)
        optimizer.step()
        peer.step()
    assert all(torch.equal(one, other) for one, other in zip(mine, their, strict=True))


def test_parameters_move_nearly_as_with_torch() -> None:
    mine, their, before = parameters(SHAPES), parameters(SHAPES), parameters(SHAPES)
    optimizer, peer = AdamW8(mine, lr=1e-3), torch.optim.AdamW(their, lr=1e-3, weight_decay=0.0)
    for step in range(60):
        set_gradients(step, mine, their, draw=draw)
        optimizer.step()
        peer.step()
    for start, one, other in zip(before, mine, their, strict=True):
        assert (one - other).norm() <= 0.05 * (other - start).norm()


def test_it_keeps_two_bytes_a_number_and_its_state_goes_on() -> None:
    optimizer, parameter = torn_as_whole(lambda given: AdamW8(given, lr=0.01), SHAPES, draw)
    assert optimizer.state[parameter]["state1"].dtype is torch.uint8
    kept = [value for value in optimizer.state[parameter].values() if torch.is_tensor(value)]
    assert sum(value.nbytes for value in kept) == pytest.approx(2 * parameter.numel(), rel=0.05)


def test_gradients_are_left_as_they_are() -> None:
    check_gradients_are_left(lambda given: AdamW8(given, lr=0.01), SHAPES, draw)


def test_a_piece_takes_the_room_that_a_rehearsal_says() -> None:
    """bitsandbytes' own function, of which a rehearsal sees only that it is called."""
    from bitsandbytes.backends.cpu.ops import _optimizer_update_8bit_blockwise_cpu as update

    numbers = 1 << 14
    weights, slopes = torch.randn(numbers), torch.randn(numbers)
    moments = [torch.zeros(numbers, dtype=torch.uint8) for _ in range(2)]
    scales = [torch.zeros(numbers // 256) for _ in range(2)]
    values = [bitsandbytes.functional.create_dynamic_map(signed=signed) for signed in (True, False)]
    betas, rest = (0.9, 0.999, 0.0, 0.0, 1e-8, 1, 1e-3), (0.01, 1.0)
    args = ("adam", slopes, weights, *moments, *betas, *values, *scales, *rest)
    with LiveBytes() as live:
        update(*args)
    predicted = scratch(torch.ops.bitsandbytes.optimizer_update_8bit_blockwise.default, args)
    seen = live.peak - weights.nbytes  # which is looked at, not made
    assert seen == pytest.approx(sum(predicted), rel=0.02)


def test_what_bitsandbytes_lacks_for_others_is_not_said() -> None:
    """On processors with bf16 it warns of kernels for weights of 4 bits whenever it is imported."""
    from bitsandbytes.backends.cpu import ops

    parse_strategy("adamw-8bit").load()
    assert not ops.logger.isEnabledFor(logging.WARNING)
