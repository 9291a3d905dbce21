"""AdamW with 8-bit moments against those of bitsandbytes and torch."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from memory import LiveBytes
from optimizers.peers import check_gradients_unchanged, check_state_round_trip, parameters, set_gradients

pytest.importorskip("bitsandbytes")
import bitsandbytes

import tightfit.optimizers.adamw_8bit as ours
from tightfit.optimizers.adamw_8bit import AdamW8
from tightfit.simulation.kernels.cpu import scratch
from tightfit.strategies import base
from tightfit.strategies.recipe import parse_strategy

SHAPES = ((96, 133), (129,), (3, 40, 50))


def draw(shape: torch.Size) -> torch.Tensor:
    return torch.randn(shape) * 0.1


@pytest.mark.parametrize("tile", [256, 1024, 1 << 20])
def test_updates_equal_those_of_bitsandbytes(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit-identical for every tile size: no block of elements with one scale is split."""
    monkeypatch.setattr(ours, "_TILE", tile)
    mine, their = parameters(SHAPES), parameters(SHAPES)
    groups: Any = [{"params": mine, "weight_decay": 0.1}]
    optimizer, peer = AdamW8(groups, lr=1e-3), bitsandbytes.optim.AdamW8bit(their, lr=1e-3, weight_decay=0.1)
    for step in range(5):
        set_gradients(step, mine, their, draw=draw)
        optimizer.step()
        peer.step()
    assert all(torch.equal(one, other) for one, other in zip(mine, their, strict=True))


def test_updates_are_close_to_those_of_torch() -> None:
    mine, their, before = parameters(SHAPES), parameters(SHAPES), parameters(SHAPES)
    optimizer, peer = AdamW8(mine, lr=1e-3), torch.optim.AdamW(their, lr=1e-3, weight_decay=0.0)
    for step in range(60):
        set_gradients(step, mine, their, draw=draw)
        optimizer.step()
        peer.step()
    for start, one, other in zip(before, mine, their, strict=True):
        assert (one - other).norm() <= 0.05 * (other - start).norm()


def test_state_takes_two_bytes_per_parameter_and_can_be_saved_and_loaded() -> None:
    optimizer, parameter = check_state_round_trip(lambda params: AdamW8(params, lr=0.01), SHAPES, draw)
    assert optimizer.state[parameter]["state1"].dtype is torch.uint8
    state = [value for value in optimizer.state[parameter].values() if torch.is_tensor(value)]
    assert sum(value.nbytes for value in state) == pytest.approx(2 * parameter.numel(), rel=0.05)


def test_gradients_are_not_changed() -> None:
    check_gradients_unchanged(lambda params: AdamW8(params, lr=0.01), SHAPES, draw)


def test_scratch_memory_of_a_tile_is_as_simulated() -> None:
    """A simulation sees only the call of the bitsandbytes function, not what it allocates."""
    from bitsandbytes.backends.cpu.ops import _optimizer_update_8bit_blockwise_cpu as update

    size = 1 << 14
    weights, gradient = torch.randn(size), torch.randn(size)
    moments = [torch.zeros(size, dtype=torch.uint8) for _ in range(2)]
    scales = [torch.zeros(size // 256) for _ in range(2)]
    values = [bitsandbytes.functional.create_dynamic_map(signed=signed) for signed in (True, False)]
    betas, rest = (0.9, 0.999, 0.0, 0.0, 1e-8, 1, 1e-3), (0.01, 1.0)
    args = ("adam", gradient, weights, *moments, *betas, *values, *scales, *rest)
    with LiveBytes() as live:
        update(*args)
    predicted = scratch(torch.ops.bitsandbytes.optimizer_update_8bit_blockwise.default, args, bf16_products=True)
    allocated = live.peak - weights.nbytes  # counted when it is used, but not allocated here
    assert allocated == pytest.approx(sum(buffer.size for buffer in predicted), rel=0.02)


def test_the_warning_of_bitsandbytes_about_4_bit_kernels_is_silenced(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CPUs with bf16 it warns about missing kernels for 4-bit weights when it is imported, and only then."""
    logger = logging.getLogger("bitsandbytes.backends.cpu.ops")
    before, levels = logger.level, list[int]()
    monkeypatch.setattr(base, "import_module", lambda name: levels.append(logger.level))
    parse_strategy("adamw-8bit").import_requirements()
    assert levels == [logging.ERROR]
    assert logger.level == before
