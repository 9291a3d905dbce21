"""Order: which rows meet in which batch. It follows from the seed, so it is known before the training."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tightfit.job import Job

    Numbers = np.ndarray[Any, np.dtype[Any]]


def steps_of(job: Job, rows: int) -> int:
    """How many batches a training takes in all."""
    return job.max_steps or math.ceil(job.epochs * math.ceil(rows / job.batch_size))


def batches_of(job: Job, rows: int) -> Iterator[Numbers]:
    """The rows of every batch of a training, in order: as accelerate's seeded sampler deals them out."""
    left = steps_of(job, rows)
    epoch = 0
    while left:
        order = epoch_order(rows, job.seed + epoch)
        starts = range(0, rows, job.batch_size)[:left]
        yield from (order[start : start + job.batch_size] for start in starts)
        left -= len(starts)
        epoch += 1


def epoch_order(rows: int, seed: int) -> Numbers:
    """All rows, shuffled."""
    import torch

    order: Numbers = torch.randperm(rows, generator=torch.Generator().manual_seed(seed)).numpy()
    return order
