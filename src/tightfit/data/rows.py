"""Rows: the texts and labels of a source on disk as Arrow, empty ones dropped and counted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tightfit.data.columns import Columns, find_columns
from tightfit.data.sources import Source, find_sources
from tightfit.errors import DataError


@dataclass(frozen=True)
class Rows:
    """Clean rows: text, text_pair for pairs, label as the file writes it, and the line each stands on."""

    name: str
    dataset: Any
    columns: Columns
    digest: str
    notes: tuple[str, ...] = ()
    """What was dropped, aloud."""

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
    missing = [c for c in (*columns.text, columns.label) if c is not None and c not in source.columns()]
    if missing:
        raise DataError(f"{source.name} has no column '{missing[0]}' as the training data has.")
    everything = _to_arrow(source, columns)
    with_text = everything.filter(_has_text, input_columns=["text"])
    clean = with_text.filter(_has_text, input_columns=["label"]) if columns.label else with_text
    if not len(clean):
        empty = "is empty in every row" if len(everything) else "has no rows"
        raise DataError(f"{source.name}: the column '{columns.text[0]}' {empty}: choose another with --text.")
    notes = (
        *_count(source.name, "without text", len(everything) - len(with_text)),
        *_count(source.name, "without a label", len(with_text) - len(clean)),
    )
    return Rows(source.name, clean, columns, source.digest, notes)


def _has_text(value: str) -> bool:
    return bool(value)


def _count(name: str, what: str, number: int) -> tuple[str, ...]:
    return (f"{name}: {number} row{'s' if number > 1 else ''} {what} dropped",) if number else ()


def _to_arrow(source: Source, columns: Columns) -> Any:
    from datasets import Dataset, Features, Value
    from datasets.exceptions import DatasetGenerationError

    names = ["text", *(["text_pair"] if len(columns.text) == 2 else []), "label"]
    features = Features({**{name: Value("string") for name in names}, "line": Value("int64")})
    try:
        return Dataset.from_generator(_generate, features=features, gen_kwargs={"source": source, "columns": columns})
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, DataError):
            raise error.__cause__ from None
        raise


def _generate(source: Source, columns: Columns) -> Iterator[dict[str, Any]]:
    for line, row in source.rows():
        texts = [_as_text(row.get(column)) for column in columns.text]
        pair = {"text_pair": texts[1]} if len(texts) == 2 else {}
        label = _as_label(row.get(columns.label)) if columns.label else ""
        yield {"text": texts[0], **pair, "label": label, "line": line}


def _as_text(value: Any) -> str:
    if value is None or isinstance(value, (list, dict, bytes)):
        return ""
    # A lone surrogate (half an emoji, cut by some other program) cannot be stored as utf-8.
    return str(value).strip().encode("utf-8", "replace").decode("utf-8")


def _as_label(value: Any) -> str:
    """Labels as text; 1, 1.0 and "1.0" are one label, NaN is none."""
    text = _as_text(value)
    if text.lower() in ("nan", "none", "null"):
        return ""
    return re.sub(r"^(-?\d+)\.0+$", r"\1", text)
