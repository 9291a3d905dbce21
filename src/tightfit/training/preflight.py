"""Pre-flight: what would fail in hour three is done first, and everything is put back as it was.

A step, so that the optimizer's state is there; the two largest slices of all batches to come, so that the second meets
the gradients of the first (the whole fullest batch, where a recipe cuts layers); the largest batch of the evaluation;
a load. The weights come back from checkpoint 0, whose saving comes first, the optimizer forgets, and the random
numbers are those from before: the training's bits do not depend on it. A run that is resumed, perhaps on a smaller
machine, flies too; it goes back to the checkpoint that it goes on from.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tightfit.data.batches import LengthBuckets, sample_batches
from tightfit.errors import OutOfMemory, PreflightFailed
from tightfit.job import Job
from tightfit.training.recovery import PartialStep, RngState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tightfit.strategies.parts import Parts
    from tightfit.training.trainer import Trainer


@dataclass(frozen=True)
class WorstBatch:
    """The rows of the training data that make the largest slices, and how many evaluation rows go together."""

    train: list[int]
    evaluation: list[int]


def find_worst_batch(
    job: Job, parts: Parts, train: Sequence[int], validation: Sequence[int], buckets: LengthBuckets | None = None
) -> WorstBatch:
    """Of the batches as the seed deals them out, from the lengths of all texts."""
    longest_text = 1 if parts.feature_cache else parts.max_length  # what is kept of a text is one token
    lengths = np.minimum(np.array(train), longest_text)
    whole = parts.layer_rows or parts.micro_batch_tokens  # any of its slices may be the largest
    taken = parts.batch_size if whole else 2 * parts.micro_batch_rows
    dealt = sample_batches(job, len(lengths), buckets)
    batches = (batch[np.argsort(-lengths[batch], kind="stable")] for batch in dealt)
    worst = max(batches, key=lambda batch: _size(lengths[batch], parts))
    longest = np.argsort(-np.array(validation), kind="stable")[: parts.evaluation_rows]
    return WorstBatch([int(row) for row in worst[:taken]], [int(row) for row in longest])


def _size(longest_first: np.ndarray[tuple[int, ...], np.dtype[np.int64]], parts: Parts) -> tuple[int, int]:
    if parts.layer_rows:
        return int(longest_first.sum()), int(longest_first[0])
    largest = max(rows * length for rows, length in parts.slices.cut(longest_first.tolist()))
    return largest, int(longest_first.sum())


def run_preflight(trainer: Trainer, worst: WorstBatch) -> float:
    """Do it all once, and return the seconds it took; PreflightFailed where the run would run out of memory."""
    start, random = time.perf_counter(), RngState()
    while not _flown(trainer, worst):
        random.restore()
    random.restore()
    return time.perf_counter() - start


def _flown(trainer: Trainer, worst: WorstBatch) -> bool:
    """False if memory ran out within a step, which then has learned to take fewer rows."""
    try:
        trainer.try_step(worst.train[-1:])
        trainer.try_batch(worst.train)
        trainer.try_evaluation(worst.evaluation)
    except PartialStep as half_done:
        trainer.report(str(half_done))
        return False
    except OutOfMemory as error:
        raise PreflightFailed(str(error)) from None
    finally:
        trainer.restore()
    return True
