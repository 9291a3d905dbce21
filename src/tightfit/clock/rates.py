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

    def slower(self, small: float, large: float) -> Rates:
        """Small operations and large ones so many times slower, those between in between; optimizers stay."""
        curves = {}
        for sort, curve in self.curves.items():
            times = np.geomspace(small, large, len(curve))
            curves[sort] = [(size, float(price * slower)) for (size, price), slower in zip(curve, times, strict=True)]
        return replace(self, curves=curves, call=small * self.call)

    def seconds(self, sort: str, amounts: Numbers, calls: Numbers) -> Numbers:
        """Of operations of one sort, each."""
        sizes, prices = zip(*self.curves.get(sort, self.curves[PASS]), strict=True)
        size = amounts / np.maximum(calls, 1e-9)
        work = amounts * np.interp(np.log(np.maximum(size, 1.0)), np.log(sizes), prices)
        waiting = calls * self.call
        seconds: Numbers = np.maximum(work, waiting) if self.overlaps else work + waiting
        return seconds
