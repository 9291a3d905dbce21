"""Rows: find the text and label columns, clean every row, collect the labels.

Broken rows are repaired or dropped; a note counts them and names their lines.
"""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntFlag
from typing import Any

import numpy as np

from tightfit.data.row_file import RowFile, store_rows
from tightfit.data.sources import Source, find_sources
from tightfit.errors import DataError, suggest

_TEXT_NAMES = (
    "text", "review", "sentence", "content", "comment", "document", "body", "message", "tweet", "title",
    "review_text", "review_body", "text_a", "评论", "文本", "内容", "句子",
)  # fmt: skip
_PAIR_NAMES = (
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("text_a", "text_b"),
    ("text1", "text2"), ("question", "passage"), ("question", "sentence"),
)  # fmt: skip
_LABEL_NAMES = (
    "label", "labels", "class", "category", "target", "sentiment", "polarity", "rating", "y", "标签", "类别", "情感",
)  # fmt: skip
LONGEST_TEXT = 100_000  # characters; a model reads the first few hundred tokens
_LINES_LISTED = 5


# Columns


@dataclass(frozen=True)
class Columns:
    """The columns that a training reads."""

    text: tuple[str, ...]
    """One column, or two for text pairs."""
    label: str | None


def find_columns(
    name: str, columns: list[str], text: tuple[str, ...] | None, label: str | None, *, need_label: bool = True
) -> Columns:
    """The given columns, or those with common names, or the only remaining column."""
    for given in (*(text or ()), *([label] if label else [])):
        if given not in columns:
            raise DataError(f"{name} has no column '{given}': {suggest(given, columns)}")
    if text is not None and not 1 <= len(text) <= 2:
        raise DataError(f"--text takes one column, or two for text pairs, not {len(text)}.")
    label = label or _first(columns, _LABEL_NAMES, taken=text or ())
    text = text or _text_by_name(columns, label)
    rest = [column for column in columns if column not in text and column != label]
    if not text and len(rest) == 1:
        text = (rest.pop(),)
    if label is None and len(rest) == 1 and need_label:
        label = rest[0]
    return Columns(_check_text(name, text, columns), _check_label(name, label, columns, need_label))


def _first(columns: list[str], names: tuple[str, ...], taken: tuple[str, ...] = ()) -> str | None:
    by_lower = {column.strip().lower(): column for column in columns if column not in taken}
    return next((by_lower[name] for name in names if name in by_lower), None)


def _text_by_name(columns: list[str], label: str | None) -> tuple[str, ...]:
    by_lower = {column.strip().lower(): column for column in columns}
    for first, second in _PAIR_NAMES:
        if first in by_lower and second in by_lower:
            return by_lower[first], by_lower[second]
    found = _first(columns, _TEXT_NAMES, taken=(label,) if label else ())
    return (found,) if found else ()


def _check_text(name: str, text: tuple[str, ...], columns: list[str]) -> tuple[str, ...]:
    if not text:
        raise DataError(_not_found(name, "text", columns, _TEXT_NAMES))
    return text


def _check_label(name: str, label: str | None, columns: list[str], need: bool) -> str | None:
    if label is None and need:
        raise DataError(_not_found(name, "label", columns, _LABEL_NAMES))
    return label


def _not_found(name: str, option: str, columns: list[str], common: tuple[str, ...]) -> str:
    near = next((c for c in columns if difflib.get_close_matches(c.lower(), common, n=1, cutoff=0.75)), None)
    hint = f"name it with --{option} {near}" if near else f"name it with --{option}"
    return (
        f"No {option} column was found in {name} (columns: {', '.join(columns)}): {hint}, "
        "or by number (--text 1 --label 2) if the file has no header line."
    )


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


@dataclass(frozen=True)
class Labels:
    """The label names in the order of their ids."""

    names: tuple[str, ...]

    @property
    def ids(self) -> dict[str, int]:
        """Label name -> class id."""
        return {name: index for index, name in enumerate(self.names)}


def find_labels(rows: Rows, *, will_be_split: bool) -> Labels:
    """Collect the labels: integers in numeric order, then names in alphabetical order."""
    counts = Counter(rows.dataset["label"])
    if len(counts) == 1:
        raise DataError(
            f"{rows.name}: all {len(rows):,} rows have the label '{next(iter(counts))}': "
            "classification needs at least two labels."
        )
    if will_be_split:
        _check_single_rows(rows, counts)
    return Labels(tuple(sorted(counts, key=_sort_key)))


def unknown_label_notes(name: str, dataset: RowFile, labels: Labels) -> tuple[str, ...]:
    """A note on rows whose label is not in the training data: the model cannot predict it."""
    pairs = zip(dataset["line"], dataset["label"], strict=True)
    lines = [line for line, label in pairs if label not in labels.ids]
    if not lines:
        return ()
    return (f"{name}: {len(lines):,} rows with labels unknown to the model dropped ({format_lines(lines)})",)


def _check_single_rows(rows: Rows, counts: Counter[str]) -> None:
    """A label with a single row cannot be in both the training and the validation rows."""
    single = [label for label, count in counts.items() if count == 1]
    if not single:
        return
    line = rows.dataset["line"][rows.dataset["label"].index(single[0])]
    more = f" (and {len(single) - 1:,} more)" if len(single) > 1 else ""
    hint = " Is it the right column?" if len(single) > len(rows) / 10 else ""
    raise DataError(
        f"{rows.name}: the label '{single[0]}'{more} appears only once, on line {line}: "
        f"add rows, remove it, or give --validation a file of its own.{hint}"
    )


def _sort_key(label: str) -> tuple[int, float, str]:
    try:
        return 0, int(label), label
    except ValueError:
        return 1, 0, label
