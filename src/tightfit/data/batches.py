"""Batches: which rows each batch holds. Their order follows from the seed, so all batches of a run are known early."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    import torch

    Batch = dict[str, torch.Tensor]
    IntArray = np.ndarray[Any, np.dtype[Any]]

_SAMPLED_BATCHES, _SAMPLED_ROWS = 20_000, 5_000_000  # takes some seconds and about 40 MB


class Schedule(Protocol):
    """What determines the batches of a training run; a job is one."""

    @property
    def batch_size(self) -> int: ...

    @property
    def epochs(self) -> float: ...

    @property
    def max_steps(self) -> int | None: ...

    @property
    def seed(self) -> int: ...

    def __hash__(self) -> int: ...


def num_steps(job: Schedule, rows: int) -> int:
    """The number of optimizer steps of a whole training run."""
    return job.max_steps or math.ceil(job.epochs * math.ceil(rows / job.batch_size))


@dataclass(frozen=True)
class LengthBuckets:
    """Length bucketing: rows of similar length share a batch."""

    lengths: Sequence[int]
    batch_size: int
    pool: int
    """How many batches are sorted by length together."""

    def order(self, seed: int) -> IntArray:
        """All rows: shuffled, sorted within each pool and cut into batches, which are shuffled again."""
        import torch

        from tightfit.compat import get_length_grouped_indices

        generator = torch.Generator().manual_seed(seed)
        rows = np.array(get_length_grouped_indices(self.lengths, self.batch_size, self.pool, generator))
        size = min(self.batch_size, len(rows))
        full = len(rows) // size
        batches, rest = rows[: full * size].reshape(full, size), rows[full * size :]
        return np.concatenate([batches[torch.randperm(full, generator=generator).numpy()].ravel(), rest])


class BucketSampler:
    """Sampler of length-bucketed rows, with a new order in each epoch."""

    def __init__(self, buckets: LengthBuckets, seed: int) -> None:
        self.buckets, self.seed, self.epoch = buckets, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Called by the data loader."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.buckets.lengths)

    def __iter__(self) -> Iterator[int]:
        return iter(self.buckets.order(self.seed + self.epoch).tolist())


def batch_indices(job: Schedule, rows: int, buckets: LengthBuckets | None = None) -> Iterator[IntArray]:
    """The rows of every batch of a training run, in the order of accelerate's seeded sampler or of BucketSampler."""
    left = num_steps(job, rows)
    epoch = 0
    while left:
        order = buckets.order(job.seed + epoch) if buckets else epoch_order(rows, job.seed + epoch)
        starts = range(0, rows, job.batch_size)[:left]
        yield from (order[start : start + job.batch_size] for start in starts)
        left -= len(starts)
        epoch += 1


def sample_batches(job: Schedule, rows: int, buckets: LengthBuckets | None = None) -> Iterator[IntArray]:
    """The first batches of a training run: at least one epoch, but bounded, as max_steps may be a billion."""
    most = max(math.ceil(rows / job.batch_size), min(_SAMPLED_BATCHES, _SAMPLED_ROWS // job.batch_size))
    return itertools.islice(batch_indices(job, rows, buckets), most)


def rows_seen(job: Schedule, rows: int, buckets: LengthBuckets | None = None) -> IntArray:
    """The rows that a training run uses: not all of them if it has less than an epoch of steps."""
    if num_steps(job, rows) >= math.ceil(rows / job.batch_size):
        return np.arange(rows)
    return np.unique(np.concatenate(list(batch_indices(job, rows, buckets))))


def epoch_order(rows: int, seed: int) -> IntArray:
    """All rows, shuffled."""
    import torch

    order: IntArray = torch.randperm(rows, generator=torch.Generator().manual_seed(seed)).numpy()
    return order
