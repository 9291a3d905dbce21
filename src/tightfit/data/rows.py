"""Rows: find the text and label columns, clean every row, collect the labels.

Broken rows are repaired or dropped; a note counts them and names their lines.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntFlag
from typing import Any

import numpy as np

from tightfit.data.columns import Columns, find_columns
from tightfit.data.row_file import RowFile, store_rows
from tightfit.data.sources import Source, find_sources
from tightfit.errors import DataError, suggest

LONGEST_TEXT = 100_000  # characters; a model reads the first few hundred tokens
_LINES_LISTED = 5


# Columns


# Cleaning


class Flaw(IntFlag):
    """What is wrong with a row, combined with |."""

    NONE = 0
    NO_TEXT = 1
    NOT_TEXT = 2
    NO_LABEL = 4
    BAD_LABEL = 8
    CONTROL_CHARACTERS = 16
    LONE_SURROGATES = 32
    VERY_LONG = 64


DROPPED = Flaw.NO_TEXT | Flaw.NOT_TEXT | Flaw.NO_LABEL | Flaw.BAD_LABEL
WITHOUT_TEXT = Flaw.NO_TEXT | Flaw.NOT_TEXT
_MESSAGES = {
    Flaw.NO_TEXT: "without text dropped",
    Flaw.NOT_TEXT: "whose text is a list, an object or bytes dropped",
    Flaw.NO_LABEL: "without a label dropped",
    Flaw.BAD_LABEL: "whose label is a list, an object or bytes dropped",
    Flaw.CONTROL_CHARACTERS: "with control characters, replaced by spaces",
    Flaw.LONE_SURROGATES: "with a lone surrogate (half a character), replaced by '?'",
    Flaw.VERY_LONG: f"longer than {LONGEST_TEXT:,} characters, truncated",
}


def clean(value: Any) -> tuple[str, Flaw]:
    """A cell as text that can be stored and tokenized, and what was wrong with it."""
    if isinstance(value, (list, tuple, dict, bytes)):
        return "", Flaw.NOT_TEXT
    text, flaws = "" if value is None or value != value else str(value).strip(), Flaw.NONE  # NaN != NaN
    if len(text) > LONGEST_TEXT:
        text, flaws = text[:LONGEST_TEXT], flaws | Flaw.VERY_LONG
    if not text.isprintable():
        text, found = _printable(text)
        flaws |= found
    return text, flaws if text else flaws | Flaw.NO_TEXT


def _printable(text: str) -> tuple[str, Flaw]:
    """Replace control characters by spaces and lone surrogates by '?'; line breaks and tabs stay."""
    flaws = Flaw.NONE
    if _SURROGATE.search(text):
        text, flaws = text.encode("utf-8", "replace").decode("utf-8"), Flaw.LONE_SURROGATES
    if text.translate(_CONTROL) != text:
        text, flaws = text.translate(_CONTROL).strip(), flaws | Flaw.CONTROL_CHARACTERS
    return text, flaws


_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTROL = dict.fromkeys((*range(9), 11, 12, *range(14, 32), 127), " ")


def describe_flaws(name: str, flaws: np.ndarray[Any, np.dtype[np.int64]], lines: Sequence[int]) -> tuple[str, ...]:
    """One note for each kind of flaw found."""
    notes = []
    for flaw, message in _MESSAGES.items():
        found = np.asarray(lines)[(flaws & int(flaw)) != 0].tolist()
        if found:
            notes.append(f"{name}: {len(found):,} row{'s' if len(found) > 1 else ''} {message} ({format_lines(found)})")
    return tuple(notes)


def format_lines(lines: Sequence[int]) -> str:
    """The line numbers, or the first few and how many more there are."""
    listed = ", ".join(str(line) for line in lines[:_LINES_LISTED])
    more = f" and {len(lines) - _LINES_LISTED:,} more" if len(lines) > _LINES_LISTED else ""
    return f"line{'s' if len(lines) > 1 else ''} {listed}{more}"


# Rows


@dataclass(frozen=True)
class Rows:
    """Clean rows: text, text_pair for pairs, the label as in the file, the line number, the row's index."""

    source: Source
    dataset: RowFile
    columns: Columns
    notes: tuple[str, ...] = ()
    """What was dropped or replaced."""

    @property
    def name(self) -> str:
        """The data as the user named it."""
        return self.source.name

    @property
    def digest(self) -> str:
        """Changes when the content changes."""
        return self.source.digest

    def __len__(self) -> int:
        return len(self.dataset)


def load_rows(
    name: str, text: tuple[str, ...] | None = None, label: str | None = None, *, need_label: bool = True
) -> tuple[Rows, Rows | None]:
    """Read a data file, folder or hub dataset: its rows, and its validation rows if it has any."""
    given = [*(text or ()), *([label] if label else [])]
    numbered = bool(given) and all(column.isdigit() for column in given)
    train, validation = find_sources(name, header=True)
    if numbered and not set(given) <= set(train.columns()):
        train, validation = find_sources(name, header=False)
    columns = find_columns(train.name, train.columns(), text, label, need_label=need_label)
    rows = read_rows(train, columns)
    return rows, read_rows(validation, columns) if validation else None


def read_rows(source: Source, columns: Columns) -> Rows:
    """Read a source into a row file, without the rows that have no usable text or label."""
    _check_columns(source, columns)
    everything = _store(source, columns)
    flaws = np.asarray(everything["flaws"], dtype=np.int64)
    if (flaws & int(WITHOUT_TEXT)).all():
        raise DataError(
            f"{source.name}: the column '{columns.text[0]}' is empty in every row: choose another with --text."
        )
    kept = np.flatnonzero(flaws & int(DROPPED) == 0)
    if not len(kept):
        raise DataError(f"{source.name}: the column '{columns.label}' has no labels: choose another with --label.")
    notes = (*source.notes, *describe_flaws(source.name, flaws, everything["line"]))
    return Rows(source, everything.select(kept).drop("flaws"), columns, notes)


def _check_columns(source: Source, columns: Columns) -> None:
    for table in source.tables:
        found = table.columns()
        missing = [name for name in (*columns.text, columns.label) if name is not None and name not in found]
        if missing:
            name = getattr(table, "path", source.name)
            raise DataError(f"{name} has no column '{missing[0]}': {suggest(missing[0], found)}")


def _store(source: Source, columns: Columns) -> RowFile:
    texts = ["text", *(["text_pair"] if len(columns.text) == 2 else []), "label"]
    kinds = dict.fromkeys(texts, str) | dict.fromkeys(("line", "row", "flaws"), int)
    return store_rows(_cleaned(source, columns), kinds)


def _cleaned(source: Source, columns: Columns) -> Iterator[dict[str, Any]]:
    for number, (line, row) in enumerate(source.rows()):
        cells = [clean(row.get(column)) for column in columns.text]
        texts = {name: text for name, (text, _) in zip(("text", "text_pair"), cells, strict=False)}
        flaws = cells[0][1] | (cells[-1][1] & ~Flaw.NO_TEXT)  # the second text of a pair may be empty
        label, label_flaws = _as_label(row.get(columns.label)) if columns.label else ("", Flaw.NONE)
        yield {**texts, "label": label, "line": line, "row": number, "flaws": int(flaws | label_flaws)}


def _as_label(value: Any) -> tuple[str, Flaw]:
    """A label as text: 1, 1.0 and "1.0" are the same label, and NaN is no label."""
    if isinstance(value, float) and math.isnan(value):
        return "", Flaw.NO_LABEL
    text, flaws = clean(value)
    if not text:
        return "", Flaw.BAD_LABEL if Flaw.NOT_TEXT in flaws else Flaw.NO_LABEL
    return re.sub(r"^(-?\d+)\.0+$", r"\1", text), flaws


# Labels
