"""Pre-flight: the largest batches are tried before the first step, then all state is restored.

A run that would run out of memory after hours fails at the start. The pre-flight runs one step, which allocates the
optimizer state; the two largest micro-batches of the run, so that the second runs beside the gradients of the
first (the whole batch with the most tokens, if the recipe chunks layers or counts tokens); the largest evaluation
batch; and a load. Afterwards the weights are loaded from checkpoint-0, which is saved first, the optimizer state is
dropped and the RNG state restored, so the run is bit-identical to one without pre-flight. A resumed run, perhaps
on a smaller machine, has a pre-flight too and restores the checkpoint it resumes from.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tightfit.activity import PREFLIGHT, activity
from tightfit.data.batches import LengthBuckets, Schedule, sample_batches
from tightfit.engine.step import optimizer_step
from tightfit.errors import OutOfMemory, PreflightFailed
from tightfit.training.recovery import PartialStep
from tightfit.training.rng_state import RngState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tightfit.strategies.parts import Parts
    from tightfit.training.trainer import Trainer


@dataclass(frozen=True)
class WorstBatch:
    """The training rows of the largest micro-batches, and the rows of the largest evaluation batch."""

    train: list[int]
    evaluation: list[int]


def find_worst_batch(
    job: Schedule, parts: Parts, train: Sequence[int], validation: Sequence[int], buckets: LengthBuckets | None = None
) -> WorstBatch:
    """Find them among the batches that the seed gives, from the lengths of all texts."""
    batching = parts.step_batching
    lengths = np.minimum(np.array(train), batching.max_length)
    sampled = sample_batches(job, len(lengths), buckets)
    batches = [batch[np.argsort(-lengths[batch], kind="stable")] for batch in sampled]
    worst = batches[batching.largest_batch([lengths[batch] for batch in batches])]
    longest = np.argsort(-np.array(validation), kind="stable")[: batching.no_grad_rows]
    return WorstBatch([int(row) for row in worst[: batching.trial_rows]], [int(row) for row in longest])


def run_preflight(trainer: Trainer, worst: WorstBatch) -> float:
    """Run it and return the seconds it took; PreflightFailed if the run would run out of memory."""
    start, rng = time.perf_counter(), RngState()
    with activity(PREFLIGHT):
        while not _attempt(trainer, worst):
            rng.restore()
        rng.restore()
    return time.perf_counter() - start


def _attempt(trainer: Trainer, worst: WorstBatch) -> bool:
    """False if memory ran out during a step; the next attempt uses fewer rows."""
    try:
        try_step(trainer, worst.train[-1:])
        try_batch(trainer, worst.train)
        try_evaluation(trainer, worst.evaluation)
    except PartialStep as error:
        trainer.report(error.message)
        return False
    except OutOfMemory as error:
        raise PreflightFailed(error.message) from None
    finally:
        trainer.restore()
    return True


def try_step(trainer: Trainer, rows: list[int]) -> None:
    """Forward, backward and optimizer step of a training batch of these rows; the schedule does not advance."""
    try_batch(trainer, rows, keep_gradients=True)
    for parameter in trainer.model.parameters():
        if parameter.grad is not None:  # in fp16 it is scaled and may be infinite, which only a scaler handles
            parameter.grad.zero_()
    optimizer_step(trainer.inner_optimizer.step, trainer.meter.phase)
    trainer.model.zero_grad()


def try_batch(trainer: Trainer, rows: list[int], *, keep_gradients: bool = False) -> None:
    """Forward and backward of a training batch of these rows."""
    trainer.training_step(trainer.model_wrapped, trainer.collate_rows(trainer.train_dataset, rows))
    if not keep_gradients:
        trainer.model.zero_grad()


def try_evaluation(trainer: Trainer, rows: list[int]) -> None:
    """One evaluation batch of these rows."""
    trainer.prediction_step(trainer.model_wrapped, trainer.collate_rows(trainer.eval_dataset, rows), False)
