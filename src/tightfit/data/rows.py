"""Rows: the texts and labels of a source on disk as Arrow, empty ones dropped and counted."""

from __future__ import annotations

import atexit
import functools
import math
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tightfit.data.columns import Columns, find_columns
from tightfit.data.sources import Source, find_sources
from tightfit.errors import DataError, suggest


@dataclass(frozen=True)
class Rows:
    """Clean rows: text, text_pair for pairs, label as the file writes it, the line each stands on, its number."""

    source: Source
    dataset: Any
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
    """Read a source's rows to Arrow on disk and drop the ones that hold nothing to learn from."""
    _refuse_missing_columns(source, columns)
    everything = _to_arrow(source, columns)
    with_text = everything.filter(_has_text, input_columns=["text"])
    clean = with_text.filter(_has_text, input_columns=["label"]) if columns.label else with_text
    if not len(with_text):
        raise DataError(
            f"{source.name}: the column '{columns.text[0]}' is empty in every row: choose another with --text."
        )
    if not len(clean):
        raise DataError(f"{source.name}: the column '{columns.label}' holds no label: choose another with --label.")
    notes = (
        *source.notes,
        *_count(source.name, "without text", len(everything) - len(with_text)),
        *_count(source.name, "without a label", len(with_text) - len(clean)),
    )
    return Rows(source, clean, columns, notes)


def _refuse_missing_columns(source: Source, columns: Columns) -> None:
    for table in source.tables:
        there = table.columns()
        missing = [name for name in (*columns.text, columns.label) if name is not None and name not in there]
        if missing:
            name = getattr(table, "path", source.name)
            raise DataError(f"{name} has no column '{missing[0]}': {suggest(missing[0], there)}")


def _has_text(value: str) -> bool:
    return bool(value)


def _count(name: str, what: str, number: int) -> tuple[str, ...]:
    return (f"{name}: {number} row{'s' if number > 1 else ''} {what} dropped",) if number else ()


def _to_arrow(source: Source, columns: Columns) -> Any:
    from datasets import Dataset, Features, Value
    from datasets.exceptions import DatasetGenerationError

    names = ["text", *(["text_pair"] if len(columns.text) == 2 else []), "label"]
    numbers = {"line": Value("int64"), "row": Value("int64")}
    features = Features({**{name: Value("string") for name in names}, **numbers})
    try:
        return Dataset.from_generator(
            _generate,
            features=features,
            gen_kwargs={"source": source, "columns": columns},
            cache_dir=_arrow_folder(),
        )
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, DataError):
            raise error.__cause__ from None
        raise


@functools.cache
def _arrow_folder() -> str:
    """A folder for this process's Arrow files, on disk beside the library's own, gone when the process ends."""
    import datasets

    home = Path(datasets.config.HF_DATASETS_CACHE)
    try:
        home.mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(prefix="tightfit-", dir=home)
    except OSError:  # a home that cannot be written to
        folder = tempfile.mkdtemp(prefix="tightfit-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _generate(source: Source, columns: Columns) -> Iterator[dict[str, Any]]:
    for number, (line, row) in enumerate(source.rows()):
        texts = [_as_text(row.get(column)) for column in columns.text]
        pair = {"text_pair": texts[1]} if len(texts) == 2 else {}
        label = _as_label(row.get(columns.label)) if columns.label else ""
        yield {"text": texts[0], **pair, "label": label, "line": line, "row": number}


def _as_text(value: Any) -> str:
    if value is None or isinstance(value, (list, dict, bytes)):
        return ""
    # A lone surrogate (half an emoji, cut by some other program) cannot be stored as utf-8.
    return str(value).strip().encode("utf-8", "replace").decode("utf-8")


def _as_label(value: Any) -> str:
    """Labels as text; 1, 1.0 and "1.0" are one label, the number NaN is none."""
    if isinstance(value, float) and math.isnan(value):
        return ""
    return re.sub(r"^(-?\d+)\.0+$", r"\1", _as_text(value))
