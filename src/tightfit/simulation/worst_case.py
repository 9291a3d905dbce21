"""Worst case: the largest micro-batches of a training run, which determine its peak memory.

They are computed from the batches that the sampler really makes of the data, which rarely reach the maximum length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from tightfit.data.batches import LengthBuckets, partition_by_tokens, rows_seen, sample_batches
from tightfit.job import Job
from tightfit.ops.fake import real_tensors
from tightfit.simulation.scaling import Array, BatchShape
from tightfit.strategies.parts import Parts

Size = Callable[[Sequence[BatchShape]], Array]
"""Size of each of several micro-batches, to compare them."""


def tokens_of(shapes: Sequence[BatchShape]) -> Array:
    """Tokens of each batch shape, padding included."""
    tokens: Array = np.array(shapes).prod(axis=1)
    return tokens


@dataclass(frozen=True)
class LargestMicroBatches:
    """The two largest micro-batches of all batches and of the first one, and the batch that holds the largest."""

    all_batches: tuple[BatchShape, ...]
    first_batch: tuple[BatchShape, ...]
    batch: int
    padded: bool
    """Whether one of them has rows of different lengths."""


def largest_by_rows(cut: Array, rows: int) -> LargestMicroBatches:
    """Rows are sorted by length, so the first micro-batches of a batch are the largest."""
    columns = [slice(start, start + rows) for start in range(0, cut.shape[1], rows)[:2]]
    return LargestMicroBatches(
        tuple(_largest(cut[:, part]) for part in columns),
        tuple(_largest(cut[:1, part]) for part in columns),
        int(cut[:, 0].argmax()),
        any(_has_padding(cut[:, part]) for part in columns),
    )


def largest_by_tokens(batches: Array, tokens: int, size: Size) -> LargestMicroBatches:
    """Few long rows or many short ones may be larger, so micro-batches are compared by `size`."""
    cut = cut_by_tokens(batches, tokens)
    all_batches, first_batch = (
        tuple(_largest_by_size(_distinct_shapes(part), size) for part in (shapes, shapes[1:]) if part.any())
        for shapes in (cut, cut[:, :1])
    )
    holds = (cut == np.array(all_batches[0])).all(axis=2).any(axis=0)
    return LargestMicroBatches(all_batches, first_batch, int(holds.argmax()), padded=True)


def cut_by_tokens(batches: Array, tokens: int) -> Array:
    """Rows and tokens of micro-batches of at most `tokens` tokens: the first ones of all batches, the second ones, ...

    The same as RowLimits.cut, vectorized over all batches; 0 where a batch has fewer micro-batches.
    """
    batch_rows, index = (batches > 0).sum(axis=1), np.arange(len(batches))
    start, cut = np.zeros_like(batch_rows), []
    while (left := batch_rows - start).any():
        longest = np.where(left > 0, batches[index, np.minimum(start, batches.shape[1] - 1)], 0)
        rows = np.minimum(np.maximum(tokens // np.maximum(longest, 1), 1), left)
        cut.append(np.stack([rows, longest], axis=1))
        start = start + rows
    return np.stack(cut)


def shapes_in(cut: Array) -> list[BatchShape]:
    """The shapes of all micro-batches in the result of `cut_by_tokens`."""
    return [(int(rows), int(longest)) for rows, longest in cut.reshape(-1, 2).tolist() if rows]


def _largest_by_size(shapes: Sequence[BatchShape], size: Size) -> BatchShape:
    return shapes[int(size(shapes).argmax())]


def _distinct_shapes(cut: Array) -> list[BatchShape]:
    """Each shape once: there may be a hundred thousand micro-batches, but only some hundred distinct shapes."""
    rows, longest = cut.reshape(-1, 2).T
    codes = np.unique(rows * (width := int(longest.max()) + 1) + longest)
    return [(int(code) // width, int(code) % width) for code in codes if code >= width]


def _largest(micro_batches: Array) -> BatchShape:
    """Rows and tokens of the longest of some micro-batches."""
    return micro_batches.shape[1], max(1, int(micro_batches[:, 0].max()))


def _has_padding(micro_batches: Array) -> bool:
    """Whether one of the longest micro-batches has a shorter row in it."""
    longest = micro_batches[micro_batches[:, 0] == micro_batches[:, 0].max()]
    return bool((longest[:, -1] < longest[:, 0]).any())


_SAMPLE_BATCHES = 128  # enough to estimate the mean time of a batch


@dataclass(frozen=True)
class WorstShapes:
    """Rows and tokens of the two largest micro-batches of a training run, and of its largest evaluation batch."""

    micro_batches: tuple[BatchShape, ...]
    evaluation: BatchShape
    first_batch: tuple[BatchShape, ...] = ()
    """The largest micro-batches of the first batch, which runs without optimizer state."""
    batch: int = 1
    """The batch that holds the largest micro-batch, counted from 1."""
    batches: int = 1
    padded: bool = True
    """Whether they contain rows of different lengths; if not, transformers drops the mask."""
    lengths: tuple[int, ...] | None = None
    """Row lengths of the batch with the most tokens, for recipes that cut layers by tokens."""
    feature_cache: tuple[BatchShape, ...] = ()
    """The largest batch that runs through a frozen encoder whose outputs are cached."""

    def __str__(self) -> str:
        if self.feature_cache:
            rows, length = self.feature_cache[0]
            return f"the largest batch through the frozen encoder is {rows} × {length} tokens"
        rows, length = max(self.micro_batches[0], self.first_batch[0])
        return f"the largest micro-batch is {rows} × {length} tokens, first in batch {self.batch:,} of {self.batches:,}"


@dataclass(frozen=True)
class Lengths:
    """Row lengths in tokens, batch by batch."""

    batches: Array
    """One row per batch, longest first; 0 where the batch has fewer rows."""
    validation: tuple[int, ...]
    """Lengths of the validation rows, longest first."""
    per_epoch: int = 1
    """Batches per epoch, also where training stops earlier."""
    job: Job | None = None
    train: tuple[int, ...] = ()
    """Lengths of all training rows, for recipes that batch them in another order."""

    @classmethod
    def of(cls, job: Job, train: Sequence[int], validation: Sequence[int]) -> Lengths:
        """The batches as the job's seed shuffles them, from the lengths of all rows."""
        batches = _sorted_batches(job, tuple(train), bucket_batches=0)
        per_epoch = math.ceil(len(train) / job.batch_size)
        return cls(batches, tuple(sorted(validation, reverse=True)), per_epoch, job, tuple(train))

    @classmethod
    def uniform(cls, rows: int, length: int) -> Lengths:
        """One batch of rows that all have this length."""
        return cls(np.full((1, rows), length), (length,) * rows)

    @property
    def longest(self) -> int:
        """Tokens of the longest training row."""
        return int(self.batches.max())

    def for_recipe(self, parts: Parts) -> Lengths:
        """The batches of a recipe: truncated to its length and, with length bucketing, in its order."""
        longest = 1 if parts.feature_cache else parts.max_length  # cached features are one vector per row
        return replace(self, batches=np.minimum(self._sampled_batches(parts), longest))

    def feature_batches(self, parts: Parts) -> list[BatchShape]:
        """Rows and tokens of the batches that run through the frozen encoder, once for all epochs."""
        lengths = sorted(self._truncated_lengths(parts) or self.batches.ravel().tolist(), reverse=True)
        starts = range(0, len(lengths), parts.no_grad_rows)
        return [(len(lengths[start : start + parts.no_grad_rows]), max(1, lengths[start])) for start in starts]

    def sample(self) -> Lengths:
        """Evenly spaced batches, enough to estimate the mean time of a batch."""
        return replace(self, batches=self.batches[:: max(1, len(self.batches) // _SAMPLE_BATCHES)])

    def fullest(self) -> Lengths:
        """Only the batch with the most tokens."""
        fullest = self.batches.sum(axis=1).argmax()
        return replace(self, batches=self.batches[fullest : fullest + 1])

    def micro_batches(self, parts: Parts) -> list[BatchShape]:
        """Rows and tokens of every micro-batch of all batches."""
        if parts.micro_batch_tokens is not None and not parts.feature_cache:
            return shapes_in(cut_by_tokens(self.batches, parts.micro_batch_tokens))
        cut, size = self.batches, parts.micro_batch_rows
        starts = range(0, cut.shape[1], size)
        columns = [(cut[:, start : start + size] > 0, cut[:, start]) for start in starts]
        return [
            (int(rows), int(longest))
            for used, first in columns
            for rows, longest in zip(used.sum(axis=1), first, strict=True)
            if rows
        ]

    def chunked_tokens(self, parts: Parts) -> int:
        """Tokens, padding included, that go through a layer when its input is cut into chunks by tokens."""
        total = 0
        for batch in self.batches.tolist():
            lengths = [length for length in batch if length]
            chunks = partition_by_tokens(lengths, (parts.layer_rows or parts.micro_batch_rows) * lengths[0])
            total += sum((chunk.end - chunk.start) * chunk.length for chunk in chunks)
        return total

    def worst_shapes(self, parts: Parts, size: Size = tokens_of) -> WorstShapes:
        """The shapes with the highest memory.

        A batch is sorted by length, so its first micro-batch is the largest and its second runs beside the gradients of
        the first. The pre-flight runs the largest batch with optimizer state in memory, so a largest batch that comes
        first, before there is state, does not lower the peak. Where micro-batches are cut by tokens, any of them may be
        the largest by `size`.
        """
        longest = 1 if parts.feature_cache else parts.max_length
        cut, rows = self.for_recipe(parts).batches, min(parts.evaluation_rows, len(self.validation))
        tokens = None if parts.feature_cache else parts.micro_batch_tokens
        if tokens is None:
            largest = largest_by_rows(cut, parts.micro_batch_rows)
        else:
            largest = largest_by_tokens(cut, tokens, size)
        feature_cache = self._largest_feature_batch(parts) if parts.feature_cache else ()
        fullest = cut[cut.sum(axis=1).argmax()]
        return WorstShapes(
            lengths=tuple(int(n) for n in fullest[fullest > 0]) if parts.layer_rows else None,
            micro_batches=largest.all_batches,
            evaluation=(rows, min(self.validation[0], longest)),
            first_batch=largest.first_batch,
            batch=largest.batch + 1,
            batches=len(self.batches),
            padded=feature_cache[-1] < feature_cache[0]
            if feature_cache
            else largest.padded or self.validation[rows - 1] < min(self.validation[0], longest),
            feature_cache=((len(feature_cache), feature_cache[0]),) if feature_cache else (),
        )

    def _sampled_batches(self, parts: Parts) -> Array:
        if not parts.bucket_batches or self.job is None:
            return self.batches
        with real_tensors():
            return _sorted_batches(self.job, self._truncated_lengths(parts), parts.bucket_batches)

    def _truncated_lengths(self, parts: Parts) -> tuple[int, ...]:
        return _truncate(self.train, parts.max_length)

    def _largest_feature_batch(self, parts: Parts) -> tuple[int, ...]:
        """Row lengths of the largest encoder batch: training and validation rows run separately, sorted by length."""
        train = self.batches.ravel().tolist()
        if self.job is not None:
            with real_tensors():
                buckets = _buckets(self.job, self._truncated_lengths(parts), parts.bucket_batches)
                seen = rows_seen(self.job, len(self.train), buckets)
            train = [self.train[row] for row in seen]
        batches = [sorted(lengths, reverse=True)[: parts.no_grad_rows] for lengths in (train, self.validation)]
        return tuple(min(length, parts.max_length) for length in max(batches, key=lambda b: len(b) * b[0]))


@lru_cache(maxsize=8)
def _truncate(lengths: tuple[int, ...], longest: int) -> tuple[int, ...]:
    return tuple(min(length, longest) for length in lengths)


@lru_cache(maxsize=8)
def _sorted_batches(job: Job, lengths: tuple[int, ...], bucket_batches: int) -> Array:
    """One row per batch, longest first; 0 where the batch has fewer rows."""
    size, array = min(job.batch_size, len(lengths)), np.array(lengths)
    batches = sample_batches(job, len(lengths), _buckets(job, lengths, bucket_batches))
    rows = [np.sort(array[batch])[::-1] for batch in batches]
    return np.array([np.pad(row, (0, size - len(row))) for row in rows])


def _buckets(job: Job, lengths: tuple[int, ...], bucket_batches: int) -> LengthBuckets | None:
    return LengthBuckets(lengths, job.batch_size, bucket_batches) if bucket_batches else None
