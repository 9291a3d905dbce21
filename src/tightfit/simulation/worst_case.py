"""Largest: how batches are cut into slices, and the largest of these: memory has to do for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from tightfit.data.batches import LengthBuckets, partition_by_tokens, rows_seen, sample_batches
from tightfit.job import Job
from tightfit.ops.fake import real_tensors
from tightfit.simulation.scaling import BatchShape, Numbers
from tightfit.strategies.parts import Parts

Size = Callable[[Sequence[BatchShape]], Numbers]
"""Of slices, to compare them with each other."""


def tokens_of(shapes: Sequence[BatchShape]) -> Numbers:
    """As many as each has, padding included."""
    tokens: Numbers = np.array(shapes).prod(axis=1)
    return tokens


@dataclass(frozen=True)
class Largest:
    """The two largest slices of all batches and of the first one, and which batch holds the largest."""

    of_all: tuple[BatchShape, ...]
    of_the_first: tuple[BatchShape, ...]
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


def extents_of(cut: Numbers) -> list[BatchShape]:
    """Of all slices that are there."""
    return [(int(rows), int(longest)) for rows, longest in cut.reshape(-1, 2).tolist() if rows]


def _largest_of(kinds: Sequence[BatchShape], size: Size) -> BatchShape:
    return kinds[int(size(kinds).argmax())]


def _kinds_of(cut: Numbers) -> list[BatchShape]:
    """Each extent once: there may be a hundred thousand slices, and there are some hundred extents."""
    rows, longest = cut.reshape(-1, 2).T
    codes = np.unique(rows * (width := int(longest.max()) + 1) + longest)
    return [(int(code) // width, int(code) % width) for code in codes if code >= width]


def _largest(slices: Numbers) -> BatchShape:
    """Rows and tokens of the longest of some slices."""
    return slices.shape[1], max(1, int(slices[:, 0].max()))


def _ragged(slices: Numbers) -> bool:
    """Whether one of the longest slices has a shorter text in it."""
    longest = slices[slices[:, 0] == slices[:, 0].max()]
    return bool((longest[:, -1] < longest[:, 0]).any())


# Lengths: the worst slice that the sampler really makes of the data, which is rarely the longest text allowed.


_ENOUGH = 128  # batches


@dataclass(frozen=True)
class WorstShapes:
    """Rows and tokens of the two largest slices of a training, and of the largest batch of the evaluation."""

    slices: tuple[BatchShape, ...]
    evaluation: BatchShape
    first: tuple[BatchShape, ...] = ()
    """Of the first batch, when there is no optimizer state yet; the others are the largest of all."""
    batch: int = 1
    """Which batch holds the first of them, counted from 1."""
    batches: int = 1
    padded: bool = True
    """Whether texts of unequal length meet in them; where none do, transformers leaves the mask out."""
    texts: tuple[int, ...] | None = None
    """How long the texts of the fullest batch are, for recipes that cut it by tokens."""
    feature_cache: tuple[BatchShape, ...] = ()
    """The largest batch that runs through a trunk whose outputs are kept."""

    def __str__(self) -> str:
        if self.feature_cache:
            rows, length = self.feature_cache[0]
            return f"the largest batch that runs through the frozen part is {rows} × {length} tokens"
        rows, length = max(self.slices[0], self.first[0])
        return f"the largest slice is {rows} × {length} tokens, first in batch {self.batch:,} of {self.batches:,}"


@dataclass(frozen=True)
class Lengths:
    """How long the texts of each batch are."""

    batches: Numbers
    """A row for each batch, longest text first; 0 where the batch has fewer rows."""
    validation: tuple[int, ...]
    """Longest first."""
    per_epoch: int = 1
    """How many batches an epoch has, also where a training ends before."""
    job: Job | None = None
    train: tuple[int, ...] = ()
    """Of every row to train on, for recipes that deal them out otherwise."""

    @classmethod
    def of(cls, job: Job, train: Sequence[int], validation: Sequence[int]) -> Lengths:
        """The batches as the seed deals them out, from the lengths of all texts."""
        dealt, per_epoch = _dealt(job, tuple(train), pool=0), math.ceil(len(train) / job.batch_size)
        return cls(dealt, tuple(sorted(validation, reverse=True)), per_epoch, job, tuple(train))

    @classmethod
    def uniform(cls, rows: int, length: int) -> Lengths:
        """One batch of texts that are all as long as allowed."""
        return cls(np.full((1, rows), length), (length,) * rows)

    @property
    def longest(self) -> int:
        """Tokens of the longest text to train on."""
        return int(self.batches.max())

    def dealt_to(self, parts: Parts) -> Lengths:
        """The batches as a recipe has them: cut, and dealt out its way."""
        longest = 1 if parts.feature_cache else parts.max_length  # what is kept of a text is one token
        return replace(self, batches=np.minimum(self._batches(parts), longest))

    def trunk_batches(self, parts: Parts) -> list[BatchShape]:
        """Rows and tokens of what goes through a frozen trunk, once for all epochs."""
        lengths = sorted(self._cut(parts) or self.batches.ravel().tolist(), reverse=True)
        starts = range(0, len(lengths), parts.eval_rows)
        return [(len(lengths[start : start + parts.eval_rows]), max(1, lengths[start])) for start in starts]

    def some(self) -> Lengths:
        """As many batches as tell how long the usual one takes."""
        return replace(self, batches=self.batches[:: max(1, len(self.batches) // _ENOUGH)])

    def fullest(self) -> Lengths:
        """Only the batch with the most tokens."""
        fullest = self.batches.sum(axis=1).argmax()
        return replace(self, batches=self.batches[fullest : fullest + 1])

    def slices(self, parts: Parts) -> list[BatchShape]:
        """Rows and tokens of every slice of all batches."""
        if parts.micro_batch_tokens is not None and not parts.feature_cache:
            return extents_of(cut_by_room(self.batches, parts.micro_batch_tokens))
        cut, size = self.batches, parts.micro_batch_rows
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
        for batch in self.batches.tolist():
            texts = [length for length in batch if length]
            pieces = partition_by_tokens(texts, (parts.layer_rows or parts.micro_batch_rows) * texts[0])
            total += sum((piece.end - piece.start) * piece.length for piece in pieces)
        return total

    def worst(self, parts: Parts, size: Size = tokens_of) -> WorstShapes:
        """A batch is sorted and cut; its first slice is the largest, its second meets the gradients of the first.

        Before the first step the largest batch of all is tried out with the optimizer's state in memory, so it does not
        help if it is the first one and would meet none. Where slices are cut by tokens, any may be the largest, and
        `size` tells which of two is larger.
        """
        longest = 1 if parts.feature_cache else parts.max_length
        dealt = self.dealt_to(parts)
        cut, rows = dealt.batches, min(parts.evaluation_rows, len(self.validation))
        room = None if parts.feature_cache else parts.micro_batch_tokens
        slices = largest_by_rows(cut, parts.micro_batch_rows) if room is None else largest_by_room(cut, room, size)
        feature_cache = self._through_the_trunk(parts) if parts.feature_cache else ()
        fullest = cut[cut.sum(axis=1).argmax()]
        return WorstShapes(
            texts=tuple(int(n) for n in fullest[fullest > 0]) if parts.layer_rows else None,
            slices=slices.of_all,
            evaluation=(rows, min(self.validation[0], longest)),
            first=slices.of_the_first,
            batch=slices.batch + 1,
            batches=len(self.batches),
            padded=feature_cache[-1] < feature_cache[0]
            if feature_cache
            else slices.ragged or self.validation[rows - 1] < min(self.validation[0], longest),
            feature_cache=((len(feature_cache), feature_cache[0]),) if feature_cache else (),
        )

    def _batches(self, parts: Parts) -> Numbers:
        if not parts.pool or self.job is None:
            return self.batches
        with real_tensors():
            return _dealt(self.job, self._cut(parts), parts.pool)

    def _cut(self, parts: Parts) -> tuple[int, ...]:
        return _shortened(self.train, parts.max_length)

    def _through_the_trunk(self, parts: Parts) -> tuple[int, ...]:
        """The lengths of the largest batch: training and validation rows go through one after the other, sorted."""
        train = self.batches.ravel().tolist()
        if self.job is not None:
            with real_tensors():
                met = rows_seen(self.job, len(self.train), _buckets(self.job, self._cut(parts), parts.pool))
            train = [self.train[row] for row in met]
        batches = [sorted(lengths, reverse=True)[: parts.eval_rows] for lengths in (train, self.validation)]
        return tuple(min(length, parts.max_length) for length in max(batches, key=lambda b: len(b) * b[0]))


@lru_cache(maxsize=8)
def _shortened(lengths: tuple[int, ...], longest: int) -> tuple[int, ...]:
    return tuple(min(length, longest) for length in lengths)


@lru_cache(maxsize=8)
def _dealt(job: Job, lengths: tuple[int, ...], pool: int) -> Numbers:
    """A row for each batch, longest text first; 0 where the batch has fewer rows."""
    size, array = min(job.batch_size, len(lengths)), np.array(lengths)
    batches = sample_batches(job, len(lengths), _buckets(job, lengths, pool))
    rows = [np.sort(array[batch])[::-1] for batch in batches]
    return np.array([np.pad(row, (0, size - len(row))) for row in rows])


def _buckets(job: Job, lengths: tuple[int, ...], pool: int) -> LengthBuckets | None:
    return LengthBuckets(lengths, job.batch_size, pool) if pool else None
