"""Reading: what a job's data brings, before any model is looked at."""

from __future__ import annotations

import multiprocessing
import os
import sys
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

from tightfit.data.rows import Columns, Labels, Rows, about_unknown_labels, find_labels, load_rows
from tightfit.data.split import Split, split_rows
from tightfit.data.tokens import token_lengths
from tightfit.errors import DataError
from tightfit.job import Job
from tightfit.processes import usable_cpus


@dataclass(frozen=True)
class JobData:
    """What a job's data brings: labels, columns and the split."""

    labels: Labels
    columns: Columns
    split: Split
    notes: tuple[str, ...]


def read_data(job: Job) -> JobData:
    """Read, clean and split the rows a job names."""
    rows, validation = load_rows(job.data, job.text_columns, job.label)
    if job.validation is not None:
        validation, _ = load_rows(job.validation, rows.columns.text, rows.columns.label)
    labels = find_labels(rows, will_be_split=validation is None)
    if validation is not None:
        validation = _with_known_labels(validation, labels)
    split = split_rows(rows, validation, job.seed)
    notes = (*rows.notes, *(validation.notes if validation else ()), _about_rows(rows, split, labels), *split.notes)
    return JobData(labels, rows.columns, split, notes)


@dataclass(frozen=True)
class DataStats:
    """All that a rehearsal wants to know of the data."""

    labels: Labels
    train: list[int]
    """How many tokens each text has."""
    validation: list[int]


def read_stats(job: Job) -> DataStats:
    """Read the rows and measure their texts."""
    from tightfit.models import load_tokenizer

    data, tokenizer = read_data(job), load_tokenizer(job.model)
    train, validation = (
        token_lengths(rows, tokenizer, job.max_length) for rows in (data.split.train, data.split.validation)
    )
    return DataStats(data.labels, train, validation)


def _with_known_labels(validation: Rows, labels: Labels) -> Rows:
    """A label that was never trained cannot be guessed: such rows are left out, aloud."""
    known = [row for row, label in enumerate(validation.dataset["label"]) if label in labels.ids]
    if not known:
        raise DataError(f"{validation.name} has none of the labels of the training data: {', '.join(labels.names)}.")
    notes = (*validation.notes, *about_unknown_labels(validation.name, validation.dataset, labels))
    return replace(validation, dataset=validation.dataset.select(known), notes=notes)


def _about_rows(rows: Rows, split: Split, labels: Labels) -> str:
    shown = ", ".join(labels.names[:6]) + (", …" if len(labels.names) > 6 else "")
    text = " + ".join(f"'{column}'" for column in rows.columns.text)
    return (
        f"{rows.name}: {len(split.train):,} rows to train on, {len(split.validation):,} to validate on; "
        f"text from {text}, {len(labels.names)} labels from '{rows.columns.label}' ({shown})"
    )


# Beside: a job's data is read on another core while this one still imports torch.
#
# Both take seconds and neither needs the other. Where there is no fork, or no second core, it is read when it is asked
# for, as it is by everyone who did not begin early.


_begun: dict[Job, Connection] = {}


def start_prefetch(job: Job) -> None:
    """Only before torch is there: the other process begins small, and no thread's locks are copied into it."""
    if "torch" in sys.modules or usable_cpus() < 2 or not Path(job.data).is_file():
        return
    mine, its = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_read, args=(job, its), daemon=True)
    process.start()
    its.close()
    _begun[job] = mine


def prefetched_stats(job: Job) -> DataStats:
    """What was read beside, or is read now. What went wrong there goes wrong again, aloud."""
    begun = _begun.pop(job, None)
    if begun is None:
        return read_stats(job)
    try:
        with begun:
            glance: DataStats | None = begun.recv()
    except (EOFError, OSError):
        glance = None
    return glance if glance is not None else read_stats(job)


def stop_reading(job: Job) -> None:
    """Nobody asks for what is read beside any more: a later call reads the file as it is then."""
    begun = _begun.pop(job, None)
    if begun is not None:
        begun.close()


def _read(job: Job, answer: Connection) -> None:
    # Nothing is said here: stdout and stderr belong to the one who waits.
    with Path(os.devnull).open("w") as nowhere:
        for stream in (1, 2):
            os.dup2(nowhere.fileno(), stream)
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # tokenizers do without, and it takes long to import
    try:
        answer.send(read_stats(job))
    except Exception:
        answer.send(None)
