"""Scaling: the size of every block as a function of rows and tokens, fitted to two micro-batches of one trace.

Every size is a constant times one of: 1, rows, tokens, rows x tokens, tokens², rows x tokens² (attention). Two
micro-batches of different shape determine which, so one trace gives the estimate for every micro-batch size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tightfit.data.batching import BatchShape
from tightfit.simulation.trace import Trace
from tightfit.strategies.base import MemoryKind

Array = np.ndarray[Any, np.dtype[Any]]

_POWERS = np.array([(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)])  # of rows, of tokens
_TOLERANCE = 0.03  # relative error allowed for one block (kernels pad to 32 tokens)
_MAX_MISFIT = 0.01  # larger errors may at no time add up to more than this share of the peak


class NotExtrapolable(Exception):
    """Two traces or sections did not run the same ops, so other sizes cannot be extrapolated from them."""


@dataclass(frozen=True)
class Sizes:
    """For each block a coefficient, the powers of rows and tokens, and the section whose shape they refer to."""

    coefficient: Array
    powers: Array
    section: Array
    bounds: Array
    """The least and the most bytes of each block: below the least it is not allocated."""

    def at(self, shapes: Sequence[BatchShape | None]) -> Array:
        """Bytes of every block when the sections have these rows and tokens; None leaves a section out."""
        monomials = monomials_of([shape or (0, 0) for shape in shapes] + [(1, 1)])
        left_out = np.array([shape is None for shape in shapes] + [False])
        sizes = self.coefficient * monomials[(*self.powers.T, self.section)]
        least, most = self.bounds.T
        sizes = np.where(sizes < least, 0, np.minimum(sizes, most))
        sizes[left_out[self.section]] = 0
        return np.rint(sizes).astype(np.int64)

    def of_section(self, section: int, shapes: Sequence[BatchShape]) -> Array:
        """Sum of the bytes of all blocks of a section, for each of these batch shapes."""
        here = self.section == section
        highest = _POWERS.max(axis=0) + 1
        index = np.ravel_multi_index(tuple(self.powers[here].T), tuple(highest))
        terms = np.bincount(index, self.coefficient[here], int(highest.prod())).reshape(highest)
        return np.tensordot(terms, monomials_of(shapes), 2)


def fit_sizes(trace: Trace, pairs: Sequence[tuple[int, int]]) -> Sizes:
    """Fit the sizes by comparing the two sections of each pair block by block; raises NotExtrapolable."""
    size = np.array([block.size for block in trace.blocks], dtype=np.float64)
    # With optimizer-in-backward, the state is allocated in the first micro-batch only.
    section = np.array([-1 if block.kind is MemoryKind.OPTIMIZER_STATE else block.section for block in trace.blocks])
    powers, misfit = np.zeros((len(size), 2), dtype=np.int64), np.zeros(len(size))
    for first, second in pairs:
        here, there = np.flatnonzero(section == first), np.flatnonzero(section == second)
        if len(here) != len(there):
            raise NotExtrapolable
        shapes = [(trace.sections[section].rows, trace.sections[section].length) for section in (first, second)]
        powers[here], errors = powers_of(size[here], size[there], *shapes)
        if _pads_all_texts(size[here], powers[here], *shapes):
            raise NotExtrapolable
        powers[there] = powers[here]
        misfit[here] = misfit[there] = np.where(errors > _TOLERANCE, errors, 0)
    if live_peak(trace, misfit * size) > _MAX_MISFIT * live_peak(trace):
        raise NotExtrapolable
    monomials = monomials_of([(s.rows, s.length) for s in trace.sections] + [(1, 1)])
    return Sizes(size / monomials[(*powers.T, section)], powers, section, _bounds(trace))


def _pads_all_texts(size: Array, powers: Array, here: BatchShape, there: BatchShape) -> bool:
    """Whether the model pads two lengths to the same one, as Longformer does: other lengths are unknown then."""
    of_rows = size * (powers[:, 0] > 0)
    return here[1] != there[1] and bool(of_rows @ (powers[:, 1] > 0) < of_rows.sum() / 2)


def constant_sizes(trace: Trace) -> Sizes:
    """The traced sizes, valid for the traced rows and tokens only."""
    size = np.array([block.size for block in trace.blocks], dtype=np.float64)
    section = np.array([block.section for block in trace.blocks])
    return Sizes(size, np.zeros((len(size), 2), dtype=np.int64), section, _bounds(trace))


def _bounds(trace: Trace) -> Array:
    return np.array([block.bounds for block in trace.blocks])


def powers_of(here: Array, there: Array, shape_here: BatchShape, shape_there: BatchShape) -> tuple[Array, Array]:
    """The powers of rows and of tokens that best fit two micro-batches, and their relative errors."""
    terms_here, terms_there = monomials_of([shape_here, shape_there])[tuple(_POWERS.T)].T
    growth = there / np.maximum(here, 1)
    errors = np.abs(growth[:, None] / (terms_there / terms_here)[None, :] - 1)
    return _POWERS[errors.argmin(axis=1)], np.where(here > 0, errors.min(axis=1), 0)


def live_peak(trace: Trace, size: Array | None = None) -> float:
    """Peak live bytes of the trace, or if the blocks had these sizes."""
    if size is None:
        size = np.array([block.size for block in trace.blocks], dtype=np.float64)
    end = trace.tick + 1
    free_ticks = [end if block.free_tick is None else block.free_tick for block in trace.blocks]
    allocated = np.bincount([block.alloc_tick for block in trace.blocks], size, end + 1)
    freed = np.bincount(free_ticks, size, end + 1)
    return float((allocated - freed).cumsum().max())


def monomials_of(shapes: Sequence[BatchShape]) -> Array:
    """Table of rows^i * tokens^j for every batch shape, indexed [i, j, shape]: a lookup is faster than a power."""
    rows, tokens = np.array(shapes, dtype=np.float64).T
    highest = _POWERS.max(axis=0)
    table: Array = rows ** np.arange(highest[0] + 1)[:, None, None] * tokens ** np.arange(highest[1] + 1)[:, None]
    return table
