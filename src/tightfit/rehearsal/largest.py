"""Largest: how batches are cut into slices, and the largest of these: memory has to do for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tightfit.rehearsal.sizes import Extent, Numbers

Size = Callable[[Sequence[Extent]], Numbers]
"""Of slices, to compare them with each other."""


def tokens_of(extents: Sequence[Extent]) -> Numbers:
    """As many as each has, padding included."""
    tokens: Numbers = np.array(extents).prod(axis=1)
    return tokens


@dataclass(frozen=True)
class Largest:
    """The two largest slices of all batches and of the first one, and which batch holds the largest."""

    of_all: tuple[Extent, ...]
    of_the_first: tuple[Extent, ...]
    batch: int
    ragged: bool
    """Whether a large one has texts of several lengths."""


def largest_by_rows(cut: Numbers, rows: int) -> Largest:
    """Sorted by length, so the first slices of a batch are the largest."""
    columns = [slice(start, start + rows) for start in range(0, cut.shape[1], rows)[:2]]
    return Largest(
        tuple(_largest(cut[:, part]) for part in columns),
        tuple(_largest(cut[:1, part]) for part in columns),
        int(cut[:, 0].argmax()),
        any(_ragged(cut[:, part]) for part in columns),
    )


def largest_by_room(batches: Numbers, tokens: int, size: Size) -> Largest:
    """Few long texts or many short ones: `size` tells."""
    cut = cut_by_room(batches, tokens)
    of_all, of_the_first = (
        tuple(_largest_of(_kinds_of(part), size) for part in (slices, slices[1:]) if part.any())
        for slices in (cut, cut[:, :1])
    )
    holds = (cut == np.array(of_all[0])).all(axis=2).any(axis=0)
    return Largest(of_all, of_the_first, int(holds.argmax()), ragged=True)


def cut_by_room(batches: Numbers, tokens: int) -> Numbers:
    """Rows and tokens of slices of at most so many tokens: first slices of all batches, second ones, and so on.

    As RowLimits.cut has it, of all batches at once; 0 where a batch has fewer slices.
    """
    texts, each = (batches > 0).sum(axis=1), np.arange(len(batches))
    start, cut = np.zeros_like(texts), []
    while (left := texts - start).any():
        longest = np.where(left > 0, batches[each, np.minimum(start, batches.shape[1] - 1)], 0)
        rows = np.minimum(np.maximum(tokens // np.maximum(longest, 1), 1), left)
        cut.append(np.stack([rows, longest], axis=1))
        start = start + rows
    return np.stack(cut)


def extents_of(cut: Numbers) -> list[Extent]:
    """Of all slices that are there."""
    return [(int(rows), int(longest)) for rows, longest in cut.reshape(-1, 2).tolist() if rows]


def _largest_of(kinds: Sequence[Extent], size: Size) -> Extent:
    return kinds[int(size(kinds).argmax())]


def _kinds_of(cut: Numbers) -> list[Extent]:
    """Each extent once: there may be a hundred thousand slices, and there are some hundred extents."""
    rows, longest = cut.reshape(-1, 2).T
    codes = np.unique(rows * (width := int(longest.max()) + 1) + longest)
    return [(int(code) // width, int(code) % width) for code in codes if code >= width]


def _largest(slices: Numbers) -> Extent:
    """Rows and tokens of the longest of some slices."""
    return slices.shape[1], max(1, int(slices[:, 0].max()))


def _ragged(slices: Numbers) -> bool:
    """Whether one of the longest slices has a shorter text in it."""
    longest = slices[slices[:, 0] == slices[:, 0].max()]
    return bool((longest[:, -1] < longest[:, 0]).any())
