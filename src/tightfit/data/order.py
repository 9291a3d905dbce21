"""Order: which rows meet in which batch. It follows from the seed, so it is known before the training."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tightfit.job import Job

    Numbers = np.ndarray[Any, np.dtype[Any]]

_BATCHES_LOOKED_AT, _ROWS_LOOKED_AT = 20_000, 5_000_000  # some seconds, some 40 MB


def steps_of(job: Job, rows: int) -> int:
    """How many batches a training takes in all."""
    return job.max_steps or math.ceil(job.epochs * math.ceil(rows / job.batch_size))


@dataclass(frozen=True)
class Buckets:
    """Rows of like length meet in a batch."""

    lengths: Sequence[int]
    batch_size: int
    pool: int
    """How many batches are sorted by length together."""

    def order(self, seed: int) -> Numbers:
        """All rows: shuffled, sorted within each pool and cut into batches, which are shuffled again."""
        import torch

        from tightfit.compat import get_length_grouped_indices

        chance = torch.Generator().manual_seed(seed)
        rows = np.array(get_length_grouped_indices(self.lengths, self.batch_size, self.pool, chance))
        size = min(self.batch_size, len(rows))
        whole = len(rows) // size
        batches, rest = rows[: whole * size].reshape(whole, size), rows[whole * size :]
        return np.concatenate([batches[torch.randperm(whole, generator=chance).numpy()].ravel(), rest])


class BucketSampler:
    """Deals out the rows of one epoch after the other."""

    def __init__(self, buckets: Buckets, seed: int) -> None:
        self.buckets, self.seed, self.epoch = buckets, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Called by the loader."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.buckets.lengths)

    def __iter__(self) -> Iterator[int]:
        return iter(self.buckets.order(self.seed + self.epoch).tolist())


def batches_of(job: Job, rows: int, buckets: Buckets | None = None) -> Iterator[Numbers]:
    """The rows of every batch of a training, in order: as accelerate's seeded sampler, or ours, deals them out."""
    left = steps_of(job, rows)
    epoch = 0
    while left:
        order = buckets.order(job.seed + epoch) if buckets else epoch_order(rows, job.seed + epoch)
        starts = range(0, rows, job.batch_size)[:left]
        yield from (order[start : start + job.batch_size] for start in starts)
        left -= len(starts)
        epoch += 1


def batches_to_look_at(job: Job, rows: int, buckets: Buckets | None = None) -> Iterator[Numbers]:
    """An epoch's batches and more, of a training without end not all: it would never begin."""
    most = max(math.ceil(rows / job.batch_size), min(_BATCHES_LOOKED_AT, _ROWS_LOOKED_AT // job.batch_size))
    return itertools.islice(batches_of(job, rows, buckets), most)


def rows_met(job: Job, rows: int, buckets: Buckets | None = None) -> Numbers:
    """The rows that a training meets at all: with few steps not every row."""
    if steps_of(job, rows) >= math.ceil(rows / job.batch_size):
        return np.arange(rows)
    return np.unique(np.concatenate(list(batches_of(job, rows, buckets))))


def epoch_order(rows: int, seed: int) -> Numbers:
    """All rows, shuffled."""
    import torch

    order: Numbers = torch.randperm(rows, generator=torch.Generator().manual_seed(seed)).numpy()
    return order
