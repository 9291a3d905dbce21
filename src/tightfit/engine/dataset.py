"""Job data: read, clean and split the rows of a job, and prefetch their lengths in another process.

Reading the data and importing torch take seconds each and do not depend on each other, so the command line reads in a
forked process meanwhile. Without fork or a second core, the data is read when it is needed.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path

from tightfit.activity import READING, activity
from tightfit.data.columns import Columns
from tightfit.data.format_detection import Sample
from tightfit.data.labels import Labels
from tightfit.data.rows import Rows, load_rows, open_data, read_sources
from tightfit.data.split import Split, split_rows
from tightfit.job import Job
from tightfit.messages import Message, msg
from tightfit.models import load_tokenizer
from tightfit.system.processes import Prefetch, usable_cpus
from tightfit.tasks import check_format, check_task, task_of
from tightfit.tasks.base import Task


@dataclass(frozen=True)
class JobData:
    """The labels, columns and split of a job's data."""

    labels: Labels
    columns: Columns
    split: Split
    notes: tuple[Message, ...]


def read_data(job: Job) -> JobData:
    """Read, clean and split the rows of a job, in the way of its task."""
    task = check_task(job)
    given = Columns.of(job.text, job.label)
    sources = open_data(job.data, task, given)
    check_format(task, sources[0], given)
    given = task.columns_in(Sample(sources[0].sample()), given)
    rows, validation = read_sources(sources, task, given)
    if job.validation is not None:
        validation, _ = load_rows(job.validation, task, rows.columns)
    labels, label_notes = task.find_labels(rows, will_be_split=validation is None)
    labels, positive_notes = task.choose_positive(labels, job.positive)
    rows = _known_rows(task, rows, labels)
    if validation is not None:
        validation = _known_rows(task, validation, labels)
    split = split_rows(rows, validation, job.seed, task.strata(rows.dataset))
    summary = msg(
        "{name}: {train:,} training rows, {validation:,} validation rows; {columns}",
        name=rows.name,
        train=len(split.train),
        validation=len(split.validation),
        columns=task.describe(rows.columns, labels),
    )
    notes = (
        *_task_note(task),
        *rows.notes,
        *label_notes,
        *(validation.notes if validation else ()),
        summary,
        *positive_notes,
        *split.notes,
    )
    return JobData(labels, rows.columns, split, notes)


def _task_note(task: Task) -> tuple[Message, ...]:
    """Which task it is, where it may have been found by the data."""
    note = msg("the data is read for {task}: --task names another task", task=task.name)
    return (note,) if task.data_format else ()


def _known_rows(task: Task, rows: Rows, labels: Labels) -> Rows:
    known, notes = task.known_rows(rows.name, rows.dataset, labels)
    return replace(rows, dataset=known, notes=(*rows.notes, *notes))


@dataclass(frozen=True)
class DataStats:
    """What a simulation needs of the data: the labels, and the tokens of each row."""

    labels: Labels
    train_lengths: list[int]
    validation_lengths: list[int]
    targets: int = 0
    """The most tokens of what is to be written for a row, where that is another axis."""


def read_stats(job: Job) -> DataStats:
    """Read the rows and count their tokens."""
    task, data, tokenizer = task_of(job), read_data(job), load_tokenizer(job.model)
    train, validation = (
        task.token_lengths(rows, tokenizer, job.max_length, data.labels)
        for rows in (data.split.train, data.split.validation)
    )
    targets = task.longest_target(data.split.train, tokenizer, job.max_length)
    return DataStats(data.labels, train, validation, targets)


# Prefetch


_prefetched: ContextVar[tuple[Job, Prefetch[DataStats]] | None] = ContextVar("prefetched", default=None)
"""The job whose statistics are being prefetched in this thread."""


@contextlib.contextmanager
def prefetching(job: Job) -> Iterator[None]:
    """Start reading in a forked process, unless torch is imported: the fork stays small and copies no locks.

    Inside, `prefetched_stats` waits for the result; if nothing does, it is dropped.
    """
    job = job.resolve_paths()
    if "torch" in sys.modules or usable_cpus() < 2 or not Path(job.data).is_file():
        yield
        return
    prefetch = Prefetch(_read_stats_without_torch, job)
    token = _prefetched.set((job, prefetch))
    try:
        yield
    finally:
        _prefetched.reset(token)
        prefetch.cancel()


def prefetched_stats(job: Job) -> DataStats:
    """The prefetched statistics; read here if nothing was prefetched or that failed, so that errors are raised here."""
    known, prefetch = _prefetched.get() or (None, None)
    with activity(READING):
        return (prefetch.result() if prefetch is not None and known == job else None) or read_stats(job)


def _read_stats_without_torch(job: Job) -> DataStats:
    """In the forked process: tokenizers do not need torch, and it takes seconds to import."""
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    return read_stats(job)
