"""Reading: what a job's data brings, before any model is looked at."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tightfit.data.columns import Columns
from tightfit.data.labels import Labels, about_unknown_labels, find_labels
from tightfit.data.rows import Rows, load_rows
from tightfit.data.split import Split, split_rows
from tightfit.data.tokens import token_lengths
from tightfit.errors import DataError
from tightfit.job import Job


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
class Glance:
    """All that a rehearsal wants to know of the data."""

    labels: Labels
    train: list[int]
    """How many tokens each text has."""
    validation: list[int]


def glance_at(job: Job) -> Glance:
    """Read the rows and measure their texts."""
    from tightfit.weights import load_tokenizer

    data, tokenizer = read_data(job), load_tokenizer(job.model)
    train, validation = (
        token_lengths(rows, tokenizer, job.max_length) for rows in (data.split.train, data.split.validation)
    )
    return Glance(data.labels, train, validation)


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
