"""Rates: how fast a device does each sort of work."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tightfit.rehearsal.sizes import Numbers
from tightfit.rehearsal.work import PASS

Curve = list[tuple[float, float]]
"""Sizes of one call, and the seconds that each unit of it takes then."""


@dataclass(frozen=True)
class Rates:
    """Seconds for every unit of work: a floating-point operation of products, a byte of all else."""

    curves: dict[str, Curve]
    call: float
    """Seconds that any operation takes besides."""
    optimizers: dict[str, float]
    """Seconds that each optimizer takes for a parameter; what is not listed is told from its operations."""
    overlaps: bool = False
    """Whether the calls run ahead of the work, as on a card: then only the longer of the two counts."""
    note: str | None = None
    """What is odd about them."""

    def slower(self, times: float, call: float) -> Rates:
        """All work so many times slower, and a call that takes so long; optimizers stay."""
        curves = {sort: [(size, times * price) for size, price in curve] for sort, curve in self.curves.items()}
        return replace(self, curves=curves, call=call)

    def seconds(self, sort: str, amounts: Numbers, calls: Numbers) -> Numbers:
        """Of operations of one sort, each."""
        sizes, prices = zip(*self.curves.get(sort, self.curves[PASS]), strict=True)
        size = amounts / np.maximum(calls, 1e-9)
        work = amounts * np.interp(np.log(np.maximum(size, 1.0)), np.log(sizes), prices)
        waiting = calls * self.call
        seconds: Numbers = np.maximum(work, waiting) if self.overlaps else work + waiting
        return seconds
