"""Job data: read, clean and split the rows of a job, and prefetch their lengths in another process.

Reading the data and importing torch take seconds each and do not depend on each other, so the command line reads in a
forked process meanwhile. Without fork or a second core, the data is read when it is needed.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

from tightfit.data.rows import Columns, Labels, Rows, find_labels, load_rows, unknown_label_notes
from tightfit.data.split import Split, split_rows
from tightfit.data.tokens import token_lengths
from tightfit.errors import DataError
from tightfit.job import Job
from tightfit.processes import usable_cpus


@dataclass(frozen=True)
class JobData:
    """The labels, columns and split of a job's data."""

    labels: Labels
    columns: Columns
    split: Split
    notes: tuple[str, ...]


def read_data(job: Job) -> JobData:
    """Read, clean and split the rows of a job."""
    rows, validation = load_rows(job.data, job.text_columns, job.label)
    if job.validation is not None:
        validation, _ = load_rows(job.validation, rows.columns.text, rows.columns.label)
    labels = find_labels(rows, will_be_split=validation is None)
    if validation is not None:
        validation = _with_known_labels(validation, labels)
    split = split_rows(rows, validation, job.seed)
    notes = (*rows.notes, *(validation.notes if validation else ()), _rows_note(rows, split, labels), *split.notes)
    return JobData(labels, rows.columns, split, notes)


@dataclass(frozen=True)
class DataStats:
    """What a simulation needs of the data: the labels, and the tokens of each row."""

    labels: Labels
    train_lengths: list[int]
    validation_lengths: list[int]


def read_stats(job: Job) -> DataStats:
    """Read the rows and count their tokens."""
    from tightfit.models import load_tokenizer

    data, tokenizer = read_data(job), load_tokenizer(job.model)
    train, validation = (
        token_lengths(rows, tokenizer, job.max_length) for rows in (data.split.train, data.split.validation)
    )
    return DataStats(data.labels, train, validation)


def _with_known_labels(validation: Rows, labels: Labels) -> Rows:
    """Drop the rows whose label is not in the training data, with a note: the model cannot predict them."""
    known = [row for row, label in enumerate(validation.dataset["label"]) if label in labels.ids]
    if not known:
        raise DataError(f"{validation.name} has none of the labels of the training data: {', '.join(labels.names)}.")
    notes = (*validation.notes, *unknown_label_notes(validation.name, validation.dataset, labels))
    return replace(validation, dataset=validation.dataset.select(known), notes=notes)


def _rows_note(rows: Rows, split: Split, labels: Labels) -> str:
    names = ", ".join(labels.names[:6]) + (", …" if len(labels.names) > 6 else "")
    text = " + ".join(f"'{column}'" for column in rows.columns.text)
    return (
        f"{rows.name}: {len(split.train):,} training rows, {len(split.validation):,} validation rows; "
        f"text from {text}, {len(labels.names)} labels from '{rows.columns.label}' ({names})"
    )


# Prefetch


_pending: dict[Job, Connection] = {}


def start_prefetch(job: Job) -> None:
    """Start reading in a forked process, unless torch is imported: the fork stays small and copies no locks."""
    if "torch" in sys.modules or usable_cpus() < 2 or not Path(job.data).is_file():
        return
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_send_stats, args=(job, sender), daemon=True)
    process.start()
    sender.close()
    _pending[job] = receiver


def prefetched_stats(job: Job) -> DataStats:
    """The prefetched statistics; read here if nothing was prefetched or that failed, so that errors are raised here."""
    receiver = _pending.pop(job, None)
    if receiver is None:
        return read_stats(job)
    try:
        with receiver:
            stats: DataStats | None = receiver.recv()
    except (EOFError, OSError):
        stats = None
    return stats if stats is not None else read_stats(job)


def cancel_prefetch(job: Job) -> None:
    """Drop an unused prefetch: the file may have changed by the next call."""
    receiver = _pending.pop(job, None)
    if receiver is not None:
        receiver.close()


def _send_stats(job: Job, sender: Connection) -> None:
    # The parent owns stdout and stderr: nothing is printed here.
    with Path(os.devnull).open("w") as devnull:
        for stream in (1, 2):
            os.dup2(devnull.fileno(), stream)
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # slow to import, and tokenizers do not need it
    try:
        sender.send(read_stats(job))
    except Exception:
        sender.send(None)
