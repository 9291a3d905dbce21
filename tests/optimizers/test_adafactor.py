"""Adafactor in pieces against transformers' own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from optimizers.peers import check_gradients_are_left, parameters, set_gradients, torn_as_whole
from transformers.optimization import Adafactor as TheirAdafactor

import tightfit.optimizers.adafactor as ours
from tightfit.optimizers.adafactor import Adafactor

SHAPES = ((64, 32), (7, 129), (1, 5), (300, 3), (16,), (4, 3, 5))
DECAY = 0.1


def draw(shape: torch.Size) -> torch.Tensor:
    return torch.randn(shape) * 10 ** torch.randn(()) * (torch.rand(shape) > 0.1)


@pytest.mark.parametrize("chunk", [1, 100, 1 << 19])
def test_parameters_move_as_with_transformers(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ours._PIECE, "cpu", chunk)
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


def test_it_keeps_rows_and_columns_and_its_state_goes_on() -> None:
    optimizer, parameter = torn_as_whole(lambda given: Adafactor(given, lr=0.01), SHAPES, draw)
    assert sum(v.numel() for v in optimizer.state[parameter].values() if torch.is_tensor(v)) == 64 + 32


def test_gradients_are_left_as_they_are() -> None:
    check_gradients_are_left(lambda given: Adafactor(given, lr=0.01), SHAPES, draw)
