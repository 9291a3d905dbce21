"""The clock: seconds of a step, slice by slice, with the padding and the second runs that a recipe really has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tightfit.clock.rates import Rates
from tightfit.rehearsal.lengths import Lengths
from tightfit.rehearsal.rehearsal import Played
from tightfit.rehearsal.sizes import Extent
from tightfit.rehearsal.work import ADDING_UP, OPTIMIZER, Table
from tightfit.strategies.parts import Parts

_AS_PLAYED: Mapping[Extent, int] = {(1, 1): 1}
_FIRST_SECTIONS = 0


@dataclass(frozen=True)
class Clock:
    """Reads a played recipe's work."""

    rates: Rates

    def pass_seconds(self, played: Played, parts: Parts, lengths: Lengths) -> float:
        """Forward and backward of a batch, the mean over all."""
        dealt = lengths.dealt_to(parts)
        batches = dealt.some()
        work = self._slices if played.for_all else self._pieces
        seconds = work(played, parts, batches, dealt) / len(batches.batches)
        return seconds + self._trunk(played, parts, lengths) / lengths.per_epoch

    def _trunk(self, played: Played, parts: Parts, lengths: Lengths) -> float:
        """A frozen trunk runs once; it is counted in the first epoch, the longest."""
        if not parts.trunk or not played.for_all:
            return 0.0
        batches = Counter(lengths.trunk_batches(parts))
        return sum(weight * self._read(table, batches) for weight, table in played.tables(_FIRST_SECTIONS))

    def _slices(self, played: Played, parts: Parts, lengths: Lengths, _: Lengths) -> float:
        slices = lengths.slices(parts)
        sections = 1 if parts.trunk else _FIRST_SECTIONS
        computed = sum(weight * self._read(table, Counter(slices)) for weight, table in played.tables(sections))
        return computed + (len(slices) - len(lengths.batches)) * self._adding_up(played)

    def _adding_up(self, played: Played) -> float:
        """Gradients of a slice are added to those of the slices before it."""
        return sum(
            weight * self._read(work.in_section(ADDING_UP), _AS_PLAYED) for weight, work in played.performance.work
        )

    def _pieces(self, played: Played, parts: Parts, lengths: Lengths, dealt: Lengths) -> float:
        """What was played is one slice, or the fullest batch in pieces; the others take as long as they have tokens."""
        section = 1 if parts.trunk else _FIRST_SECTIONS
        tables = [(weight, work.in_section(section)) for weight, work in played.performance.work]
        seconds = sum(weight * self._read(table, _AS_PLAYED) for weight, table in tables)
        if parts.layer_rows is not None:
            return seconds * lengths.tokens(parts) / dealt.fullest().tokens(parts)
        rows, length = played.performance.extents.slices[0]
        return seconds * sum(r * n for r, n in lengths.slices(parts)) / (rows * length)

    def update_seconds(self, played: Played, optimizer: str) -> float:
        """One step of the optimizer."""
        done = played.performance
        if optimizer in self.rates.optimizers:
            return done.trainable_parameters * self.rates.optimizers[optimizer]
        steps = len(done.extents.slices) if done.parts.step_in_backward else 2
        return sum(w * self._read(work.in_section(OPTIMIZER), _AS_PLAYED) for w, work in done.steps) / steps

    def _read(self, table: Table, extents: Mapping[Extent, int]) -> float:
        """For slices of these rows and tokens, so many of each."""
        counts = np.array(list(extents.values()))
        seconds = [self.rates.seconds(sort, *work) for sort, *work in table.at(list(extents))]
        return float(sum((of_sort.sum(axis=0) * counts).sum() for of_sort in seconds))
