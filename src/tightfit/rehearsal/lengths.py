"""Lengths: the worst slice that the sampler really makes of the data, which is rarely the longest text allowed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tightfit.data.order import batches_of
from tightfit.job import Job
from tightfit.pieces import cut_by_tokens
from tightfit.rehearsal.sizes import Extent, Numbers
from tightfit.strategy import Parts


_ENOUGH = 128  # batches


@dataclass(frozen=True)
class Shapes:
    """Rows and tokens of the two largest slices of a training, and of the largest batch of the evaluation."""

    slices: tuple[Extent, ...]
    evaluation: Extent
    first: tuple[Extent, ...] = ()
    """Of the first batch, when there is no optimizer state yet; the others are the largest after it."""
    batch: int = 1
    """Which batch holds the first of them, counted from 1."""
    batches: int = 1
    padded: bool = True
    """Whether texts of unequal length meet in them; where none do, transformers leaves the mask out."""
    texts: tuple[int, ...] | None = None
    """How long the texts of the fullest batch are, for recipes that cut it by tokens."""

    def __str__(self) -> str:
        rows, length = max(self.slices[0], self.first[0])
        return f"the largest slice is {rows} × {length} tokens, first in batch {self.batch:,} of {self.batches:,}"


@dataclass(frozen=True)
class Lengths:
    """How long the texts of each batch are."""

    batches: Numbers
    """A row for each batch, longest text first; 0 where the batch has fewer rows."""
    validation: tuple[int, ...]
    """Longest first."""
    evaluations: int = 2
    """How often the model is evaluated; after the first time an earlier one may turn out the best."""
    per_epoch: int = 1
    """How many batches an epoch has, also where a training ends before."""

    @classmethod
    def of(cls, job: Job, train: Sequence[int], validation: Sequence[int]) -> Lengths:
        """The batches as the seed deals them out, from the lengths of all texts."""
        lengths, size = np.array(train), min(job.batch_size, len(train))
        rows = [np.sort(lengths[batch])[::-1] for batch in batches_of(job, len(lengths))]
        padded = np.array([np.pad(row, (0, size - len(row))) for row in rows])
        per_epoch = math.ceil(len(lengths) / job.batch_size)
        return cls(padded, tuple(sorted(validation, reverse=True)), math.ceil(len(rows) / per_epoch), per_epoch)

    @classmethod
    def uniform(cls, rows: int, length: int) -> Lengths:
        """One batch of texts that are all as long as allowed."""
        return cls(np.full((1, rows), length), (length,) * rows)

    def some(self) -> Lengths:
        """As many batches as tell how long the usual one takes."""
        return replace(self, batches=self.batches[:: max(1, len(self.batches) // _ENOUGH)])

    def fullest(self, parts: Parts) -> Lengths:
        """Only the batch with the most tokens."""
        fullest = np.minimum(self.batches, parts.max_length).sum(axis=1).argmax()
        return replace(self, batches=self.batches[fullest : fullest + 1])

    def slices(self, parts: Parts) -> list[Extent]:
        """Rows and tokens of every slice of all batches."""
        cut, size = np.minimum(self.batches, parts.max_length), parts.slice_rows
        starts = range(0, cut.shape[1], size)
        slices = [(cut[:, start : start + size] > 0, cut[:, start]) for start in starts]
        return [
            (int(rows), int(longest))
            for used, first in slices
            for rows, longest in zip(used.sum(axis=1), first, strict=True)
            if rows
        ]

    def tokens(self, parts: Parts) -> int:
        """How many tokens, padding included, go through a layer when batches are cut by tokens."""
        total = 0
        for batch in np.minimum(self.batches, parts.max_length).tolist():
            texts = [length for length in batch if length]
            pieces = cut_by_tokens(texts, (parts.layer_rows or parts.slice_rows) * texts[0])
            total += sum((piece.end - piece.start) * piece.length for piece in pieces)
        return total

    def worst(self, parts: Parts) -> Shapes:
        """A batch is sorted and cut; its first slice is the largest, its second meets the gradients of the first."""
        cut = np.minimum(self.batches, parts.max_length)
        later = cut[1:] if len(cut) > 1 else cut
        starts = range(0, cut.shape[1], parts.slice_rows)[:2]
        rows = min(parts.evaluation_rows, len(self.validation))
        ragged = [_ragged(later[:, start : start + parts.slice_rows]) for start in starts]
        fullest = cut[cut.sum(axis=1).argmax()]
        return Shapes(
            texts=tuple(int(n) for n in fullest[fullest > 0]) if parts.layer_rows else None,
            slices=tuple(_largest(later[:, start : start + parts.slice_rows]) for start in starts),
            evaluation=(rows, min(self.validation[0], parts.max_length)),
            first=tuple(_largest(cut[:1, start : start + parts.slice_rows]) for start in starts),
            batch=int(cut[:, 0].argmax()) + 1,
            batches=len(self.batches),
            padded=any(ragged) or self.validation[rows - 1] < min(self.validation[0], parts.max_length),
        )


def _largest(slices: Numbers) -> Extent:
    """Rows and tokens of the longest of some slices."""
    return slices.shape[1], max(1, int(slices[:, 0].max()))


def _ragged(slices: Numbers) -> bool:
    """Whether one of the longest slices has a shorter text in it."""
    longest = slices[slices[:, 0] == slices[:, 0].max()]
    return bool((longest[:, -1] < longest[:, 0]).any())
