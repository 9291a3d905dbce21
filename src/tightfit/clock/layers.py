"""Whole layers: what operations take within one, against what they take by themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from tightfit.clock.noting import Noting
from tightfit.clock.quiet import times
from tightfit.clock.rates import Rates
from tightfit.rehearsal.work import Table

_HEAD = 64
SHAPES = ((2, 64, 384), (4, 128, 384), (8, 64, 768))  # from small to large: texts, tokens, width


def set_right(rates: Rates, layers: Sequence[tuple[Table, float]]) -> Rates:
    """Operations one by one, over and over, meet warmer caches than within a layer, and cores that are awake.

    So a few layers are timed as a whole, forward and backward, and two numbers found that foretell them all: how many
    times slower all work is there, and what a call takes.
    """
    shares = np.array([(foretold(replace(rates, call=0.0), table), table.calls.sum()) for table, _ in layers])
    shares /= np.array([[seconds] for _, seconds in layers])
    slower, call = np.linalg.lstsq(shares, np.ones(len(layers)))[0]
    if slower <= 0 or call < rates.call:  # the machine's mood has changed between them
        slower, call = float(np.median((1 - rates.call * shares[:, 1]) / shares[:, 0])), rates.call
    return rates.slower(float(slower), float(call))


def foretold(rates: Rates, table: Table) -> float:
    return float(sum(rates.seconds(sort, *work).sum() for sort, *work in table.at([(1, 1)])))


@dataclass(frozen=True)
class Layer:
    """A layer as a whole: its work, and a step through it and back."""

    table: Table
    step: Callable[[], None]

    @classmethod
    def of(cls, texts: int, tokens: int, width: int) -> Layer:
        layer = torch.nn.TransformerEncoderLayer(width, width // _HEAD, 4 * width, activation="gelu", batch_first=True)
        batch = torch.randn(texts, tokens, width)

        def step() -> None:
            layer(batch).sum().backward()
            layer.zero_grad()

        with Noting() as noting:  # which makes it warm, too
            step()
        return cls(noting.table, step)

    def seconds(self) -> float:
        return min(times(self.step, 2))
