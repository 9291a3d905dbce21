"""Rows: the texts and labels of a source in a file, empty ones dropped and counted."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tightfit.data.columns import Columns, find_columns
from tightfit.data.flaws import DROPPED, WITHOUT_TEXT, Flaw, clean, notes_on
from tightfit.data.sources import Source, find_sources
from tightfit.data.store import Store, store_rows
from tightfit.errors import DataError, suggest


@dataclass(frozen=True)
class Rows:
    """Clean rows: text, text_pair for pairs, label as the file writes it, the line each stands on, its number."""

    source: Source
    dataset: Store
    columns: Columns
    notes: tuple[str, ...] = ()
    """What was dropped, aloud."""

    @property
    def name(self) -> str:
        """What the user called it."""
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
    """Read what the user named as data: its rows, and validation rows where it brings its own."""
    given = [*(text or ()), *([label] if label else [])]
    numbered = bool(given) and all(word.isdigit() for word in given)
    train, validation = find_sources(name, header=True)
    if numbered and not set(given) <= set(train.columns()):
        train, validation = find_sources(name, header=False)
    columns = find_columns(train.name, train.columns(), text, label, need_label=need_label)
    rows = read_rows(train, columns)
    return rows, read_rows(validation, columns) if validation else None


def read_rows(source: Source, columns: Columns) -> Rows:
    """Read a source's rows to a file and drop the ones that hold nothing to learn from."""
    _refuse_missing_columns(source, columns)
    everything = _stored(source, columns)
    flaws = np.asarray(everything["flaws"], dtype=np.int64)
    if (flaws & int(WITHOUT_TEXT)).all():
        raise DataError(
            f"{source.name}: the column '{columns.text[0]}' is empty in every row: choose another with --text."
        )
    kept = np.flatnonzero(flaws & int(DROPPED) == 0)
    if not len(kept):
        raise DataError(f"{source.name}: the column '{columns.label}' holds no label: choose another with --label.")
    notes = (*source.notes, *notes_on(source.name, flaws, everything["line"]))
    return Rows(source, everything.select(kept).without("flaws"), columns, notes)


def _refuse_missing_columns(source: Source, columns: Columns) -> None:
    for table in source.tables:
        there = table.columns()
        missing = [name for name in (*columns.text, columns.label) if name is not None and name not in there]
        if missing:
            name = getattr(table, "path", source.name)
            raise DataError(f"{name} has no column '{missing[0]}': {suggest(missing[0], there)}")


def _stored(source: Source, columns: Columns) -> Store:
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
    """Labels as text; 1, 1.0 and "1.0" are one label, the number NaN is none."""
    if isinstance(value, float) and math.isnan(value):
        return "", Flaw.NO_LABEL
    text, flaws = clean(value)
    if not text:
        return "", Flaw.LABEL_OF_NO_USE if Flaw.TEXT_OF_NO_USE in flaws else Flaw.NO_LABEL
    return re.sub(r"^(-?\d+)\.0+$", r"\1", text), flaws
