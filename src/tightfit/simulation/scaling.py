"""Sizes: every block's size as a function of rows and tokens, learnt from two slices of one play.

All that depends on the data is a number times one of: nothing, rows, tokens, rows x tokens, tokens², rows x
tokens² (attention). Two slices of different shape tell which, so one play makes the bill for every slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tightfit.simulation.trace import Trace
from tightfit.strategies.base import MemoryKind

BatchShape = tuple[int, int]
Numbers = np.ndarray[Any, np.dtype[Any]]

_POWERS = np.array([(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)])  # of rows, of tokens
_ODD = 0.03  # a block may be this far from its rule (kernels pad to 32 tokens)
_ODD_SHARE = 0.01  # and what is farther off may at no time add up to more than this much of the peak


class NotExtrapolable(Exception):
    """The two slices did not do the same operations, so other slices cannot be told from them."""


@dataclass(frozen=True)
class Sizes:
    """A coefficient and two powers for each block, and the section whose rows and tokens count."""

    coefficient: Numbers
    powers: Numbers
    section: Numbers

    def at(self, shapes: Sequence[BatchShape | None]) -> Numbers:
        """Bytes of every block when the sections have these rows and tokens; None leaves a section out."""
        monomials = monomials_of([shape or (0, 0) for shape in shapes] + [(1, 1)])
        left_out = np.array([shape is None for shape in shapes] + [False])
        sizes = self.coefficient * monomials[(*self.powers.T, self.section)]
        sizes[left_out[self.section]] = 0
        return np.rint(sizes).astype(np.int64)

    def of_section(self, section: int, shapes: Sequence[BatchShape]) -> Numbers:
        """All bytes that a section would take in the course of it, for each of some rows and tokens."""
        here = self.section == section
        highest = _POWERS.max(axis=0) + 1
        index = np.ravel_multi_index(tuple(self.powers[here].T), tuple(highest))
        terms = np.bincount(index, self.coefficient[here], int(highest.prod())).reshape(highest)
        return np.tensordot(terms, monomials_of(shapes), 2)


def fit_sizes(trace: Trace, pairs: Sequence[tuple[int, int]]) -> Sizes:
    """Compare the two sections of each pair block by block."""
    size = np.array([block.size for block in trace.blocks], dtype=np.float64)
    # An optimizer that steps in the backward pass makes its state in the first slice only.
    section = np.array([-1 if block.kind is MemoryKind.OPTIMIZER_STATE else block.section for block in trace.blocks])
    powers, off = np.zeros((len(size), 2), dtype=np.int64), np.zeros(len(size))
    for first, second in pairs:
        here, there = np.flatnonzero(section == first), np.flatnonzero(section == second)
        if len(here) != len(there):
            raise NotExtrapolable
        shapes = [(trace.sections[section].rows, trace.sections[section].length) for section in (first, second)]
        powers[here], misses = powers_of(size[here], size[there], *shapes)
        powers[there] = powers[here]
        off[here] = off[there] = np.where(misses > _ODD, misses, 0)
    if _most_alive(trace, off * size) > _ODD_SHARE * _most_alive(trace, size):
        raise NotExtrapolable
    monomials = monomials_of([(s.rows, s.length) for s in trace.sections] + [(1, 1)])
    return Sizes(size / monomials[(*powers.T, section)], powers, section)


def constant_sizes(trace: Trace) -> Sizes:
    """Sizes as they were played, true for these rows and tokens only."""
    size = np.array([block.size for block in trace.blocks], dtype=np.float64)
    return Sizes(size, np.zeros((len(size), 2), dtype=np.int64), np.array([block.section for block in trace.blocks]))


def powers_of(
    here: Numbers, there: Numbers, extent_here: BatchShape, extent_there: BatchShape
) -> tuple[Numbers, Numbers]:
    """The powers of rows and of tokens that best explain how numbers changed between slices, and how far off."""
    rules_here, rules_there = monomials_of([extent_here, extent_there])[tuple(_POWERS.T)].T
    grown = there / np.maximum(here, 1)
    misses = np.abs(grown[:, None] / (rules_there / rules_here)[None, :] - 1)
    return _POWERS[misses.argmin(axis=1)], np.where(here > 0, misses.min(axis=1), 0)


def _most_alive(trace: Trace, size: Numbers) -> float:
    """The most bytes at any time, if the blocks had these sizes."""
    end = trace.clock + 1
    born = np.bincount([block.born for block in trace.blocks], size, end + 1)
    died = np.bincount([end if block.died is None else block.died for block in trace.blocks], size, end + 1)
    return float((born - died).cumsum().max())


def monomials_of(shapes: Sequence[BatchShape]) -> Numbers:
    """Of every extent: by the power of its rows, then that of its tokens. A look is sooner done than a power."""
    rows, tokens = np.array(shapes, dtype=np.float64).T
    highest = _POWERS.max(axis=0)
    table: Numbers = rows ** np.arange(highest[0] + 1)[:, None, None] * tokens ** np.arange(highest[1] + 1)[:, None]
    return table
