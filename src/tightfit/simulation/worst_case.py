"""Worst case: the largest micro-batches of a training run, which determine its peak memory.

They are computed from the batches that the sampler really makes of the data, which rarely reach the maximum length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from tightfit.data.batches import Schedule, rows_seen, sample_batches
from tightfit.data.batching import Batching, BatchShape, Size, tokens_of
from tightfit.messages import Message, msg
from tightfit.ops.fake import real_tensors
from tightfit.strategies.parts import Parts

if TYPE_CHECKING:
    from tightfit.data.batches import IntArray

_FIRST_BATCHES = 4  # of a run that a GPU's allocator is simulated for
_SAMPLE_BATCHES = 128  # enough to estimate the mean time of a batch


@dataclass(frozen=True)
class WorstShapes:
    """Rows and tokens of the two largest micro-batches of a training run, and of its largest evaluation batch."""

    micro_batches: tuple[BatchShape, ...]
    evaluation: BatchShape
    first_step: BatchShape = (1, 1)
    """The micro-batch of the pre-flight's first step, which allocates the optimizer state: one row."""
    first_batches: tuple[tuple[BatchShape, ...], ...] = ()
    """Micro-batches of the first batches, and of that with the largest: two from the start of each, and its last."""
    batch: int = 1
    """The batch that holds the largest micro-batch, counted from 1."""
    batches: int = 1
    lengths: tuple[int, ...] | None = None
    """Row lengths of the batch with the most tokens, for recipes that cut layers by tokens."""
    encoder: tuple[BatchShape, ...] = ()
    """The largest batch that runs through a frozen encoder whose outputs are cached."""

    def __str__(self) -> str:
        return self.about

    @property
    def about(self) -> Message:
        """The largest batch, for messages."""
        if self.encoder:
            rows, length = self.encoder[0]
            return msg(
                "the largest batch through the frozen encoder is {rows} × {tokens} tokens", rows=rows, tokens=length
            )
        rows, length = self.micro_batches[0]
        return msg(
            "the largest micro-batch is {rows} × {tokens} tokens, first in batch {batch:,} of {batches:,}",
            rows=rows,
            tokens=length,
            batch=self.batch,
            batches=self.batches,
        )


@dataclass(frozen=True)
class Lengths:
    """Row lengths in tokens, batch by batch."""

    batches: IntArray
    """One row per batch, longest first; 0 where the batch has fewer rows."""
    validation: tuple[int, ...]
    """Lengths of the validation rows, longest first."""
    per_epoch: int = 1
    """Batches per epoch, also where training stops earlier."""
    job: Schedule | None = None
    train: tuple[int, ...] = ()
    """Lengths of all training rows, for recipes that batch them in another order."""

    @classmethod
    def of(cls, job: Schedule, train: Sequence[int], validation: Sequence[int]) -> Lengths:
        """The batches as the job's seed shuffles them, from the lengths of all rows."""
        batches = _sorted_batches(job, tuple(train), Batching(job.batch_size, max(train)))
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
        return replace(self, batches=np.minimum(self._sampled_batches(parts.batching), parts.step_batching.max_length))

    def encoder_batches(self, parts: Parts) -> list[BatchShape]:
        """Rows and tokens of the batches that run through a frozen encoder, once for all epochs."""
        batches = parts.source.encoder_batches(parts.batching, self.train or self.batches.ravel().tolist())
        return [(len(batch), max(1, batch[0])) for batch in batches]

    def sample(self) -> Lengths:
        """Evenly spaced batches, enough to estimate the mean time of a batch."""
        return replace(self, batches=self.batches[:: max(1, len(self.batches) // _SAMPLE_BATCHES)])

    def worst_shapes(self, parts: Parts, size: Size = tokens_of) -> WorstShapes:
        """The shapes with the highest memory.

        A batch is sorted by length, so its first micro-batch is the largest and its second runs beside the gradients of
        the first. The pre-flight takes a step with one row, which allocates the optimizer state, and then runs the
        largest batch beside it; a GPU's allocator keeps its segments, so this order matters. Where micro-batches are
        cut by tokens, any of them may be the largest by `size`.
        """
        batching, cut = parts.step_batching, self.for_recipe(parts).batches
        rows, longest = min(batching.no_grad_rows, len(self.validation)), min(self.validation[0], batching.max_length)
        largest, encoder = batching.largest(cut, size), self._largest_encoder_batch(parts)
        return WorstShapes(
            lengths=batching.fullest(cut),
            micro_batches=largest.shapes,
            evaluation=(rows, longest),
            first_step=batching.trial_row(cut[largest.batch]),
            first_batches=_first_batches(batching, cut, largest.batch),
            batch=largest.batch + 1,
            batches=len(self.batches),
            encoder=((len(encoder), encoder[0]),) if encoder else (),
        )

    def _sampled_batches(self, batching: Batching) -> IntArray:
        if not batching.bucket_batches or self.job is None:
            return self.batches
        with real_tensors():
            return _sorted_batches(self.job, self._truncated_lengths(batching), batching)

    def _truncated_lengths(self, batching: Batching) -> tuple[int, ...]:
        return _truncate(self.train, batching.max_length)

    def _largest_encoder_batch(self, parts: Parts) -> list[int]:
        """Row lengths of the largest encoder batch: training and validation rows run separately."""
        first = [
            batches[0]
            for lengths in (self._seen_lengths(parts.batching), self.validation)
            if (batches := parts.source.encoder_batches(parts.batching, lengths))
        ]
        return max(first, key=lambda batch: len(batch) * batch[0], default=[])

    def _seen_lengths(self, batching: Batching) -> list[int]:
        """The lengths of the training rows that the run uses."""
        if self.job is None:
            return [int(length) for length in self.batches.ravel()]
        with real_tensors():
            seen = rows_seen(self.job, len(self.train), batching.buckets(self._truncated_lengths(batching)))
        return [self.train[row] for row in seen]


def _first_batches(batching: Batching, cut: IntArray, largest: int) -> tuple[tuple[BatchShape, ...], ...]:
    """The micro-batches of the first batches and of the largest one: two from the start of each, and its last."""
    first = [*range(min(_FIRST_BATCHES, len(cut)))]
    batches = [batching.micro_batches(cut[[number]]) for number in (*first, *({largest} - set(first)))]
    return tuple(tuple(batch[:2] + batch[2:][-1:]) for batch in batches)


@lru_cache(maxsize=8)
def _truncate(lengths: tuple[int, ...], longest: int) -> tuple[int, ...]:
    return tuple(min(length, longest) for length in lengths)


@lru_cache(maxsize=8)
def _sorted_batches(job: Schedule, lengths: tuple[int, ...], batching: Batching) -> IntArray:
    """One row per batch, longest first; 0 where the batch has fewer rows."""
    size, array = min(job.batch_size, len(lengths)), np.array(lengths)
    batches = sample_batches(job, len(lengths), batching.buckets(lengths))
    rows = [np.sort(array[batch])[::-1] for batch in batches]
    return np.array([np.pad(row, (0, size - len(row))) for row in rows])
