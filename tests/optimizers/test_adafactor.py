"""Tiled Adafactor gives the same result as transformers' Adafactor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from optimizers.peers import check_gradients_unchanged, check_state_round_trip, parameters, set_gradients
from transformers.optimization import Adafactor as TheirAdafactor

import tightfit.optimizers.adafactor as ours
from tightfit.optimizers.adafactor import Adafactor

SHAPES = ((64, 32), (7, 129), (1, 5), (300, 3), (16,), (4, 3, 5))
DECAY = 0.1


def draw(shape: torch.Size) -> torch.Tensor:
    return torch.randn(shape) * 10 ** torch.randn(()) * (torch.rand(shape) > 0.1)


@pytest.mark.parametrize("tile", [1, 100, 1 << 19])
def test_updates_equal_those_of_transformers(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "_TILE", tile)
    mine, their = parameters(SHAPES), parameters(SHAPES)
    groups: Any = [{"params": mine, "weight_decay": DECAY}]
    optimizer = Adafactor(groups, lr=0.01)
    peer = TheirAdafactor(their, lr=0.01, weight_decay=DECAY, scale_parameter=False, relative_step=False)
    before = parameters(SHAPES)
    for step in range(5):
        set_gradients(step, mine, their, draw=draw)
        optimizer.step()
        peer.step()
    for start, one, other in zip(before[:-1], mine[:-1], their[:-1], strict=True):
        assert (one - other).norm() <= 1e-5 * (one - start).norm()


def test_state_is_per_row_and_column_and_can_be_saved_and_loaded() -> None:
    optimizer, parameter = check_state_round_trip(lambda params: Adafactor(params, lr=0.01), SHAPES, draw)
    assert sum(v.numel() for v in optimizer.state[parameter].values() if torch.is_tensor(v)) == 64 + 32


def test_gradients_are_not_changed() -> None:
    check_gradients_unchanged(lambda params: Adafactor(params, lr=0.01), SHAPES, draw)
