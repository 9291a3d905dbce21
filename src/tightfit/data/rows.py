"""Columns: which hold the text and the label, found by name or given."""

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

_TEXTS = (
    "text", "review", "sentence", "content", "comment", "document", "body", "message", "tweet", "title",
    "review_text", "review_body", "text_a", "评论", "文本", "内容", "句子",
)  # fmt: skip
_PAIRS = (
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("text_a", "text_b"),
    ("text1", "text2"), ("question", "passage"), ("question", "sentence"),
)  # fmt: skip
_LABELS = (
    "label", "labels", "class", "category", "target", "sentiment", "polarity", "rating", "y", "标签", "类别", "情感",
)  # fmt: skip


@dataclass(frozen=True)
class Columns:
    """The columns a training reads."""

    text: tuple[str, ...]
    """One column, or two for pairs."""
    label: str | None


def find_columns(
    name: str, columns: list[str], text: tuple[str, ...] | None, label: str | None, *, need_label: bool = True
) -> Columns:
    """Take the given columns if the file has them, else the ones with usual names, else the only one left."""
    for given in (*(text or ()), *([label] if label else [])):
        if given not in columns:
            raise DataError(f"{name} has no column '{given}': {suggest(given, columns)}")
    if text is not None and not 1 <= len(text) <= 2:
        raise DataError(f"--text takes one column or two (a pair), not {len(text)}.")
    label = label or _first(columns, _LABELS, taken=text or ())
    text = text or _text_by_name(columns, label)
    rest = [column for column in columns if column not in text and column != label]
    if not text and len(rest) == 1:
        text = (rest.pop(),)
    if label is None and len(rest) == 1 and need_label:
        label = rest[0]
    return Columns(_text_found(name, text, columns), _label_found(name, label, columns, need_label))


def _first(columns: list[str], names: tuple[str, ...], taken: tuple[str, ...] = ()) -> str | None:
    by_lower = {column.strip().lower(): column for column in columns if column not in taken}
    return next((by_lower[name] for name in names if name in by_lower), None)


def _text_by_name(columns: list[str], label: str | None) -> tuple[str, ...]:
    by_lower = {column.strip().lower(): column for column in columns}
    for first, second in _PAIRS:
        if first in by_lower and second in by_lower:
            return by_lower[first], by_lower[second]
    found = _first(columns, _TEXTS, taken=(label,) if label else ())
    return (found,) if found else ()


def _text_found(name: str, text: tuple[str, ...], columns: list[str]) -> tuple[str, ...]:
    if not text:
        raise DataError(_not_found(name, "text", columns, _TEXTS))
    return text


def _label_found(name: str, label: str | None, columns: list[str], need: bool) -> str | None:
    if label is None and need:
        raise DataError(_not_found(name, "label", columns, _LABELS))
    return label


def _not_found(name: str, what: str, columns: list[str], usual: tuple[str, ...]) -> str:
    near = next((c for c in columns if difflib.get_close_matches(c.lower(), usual, n=1, cutoff=0.75)), None)
    hint = f"name it with --{what} {near}" if near else f"name it with --{what}"
    return (
        f"No {what} column was found in {name} (columns: {', '.join(columns)}): {hint}, "
        "or by number (--text 1 --label 2) if the first line holds no names."
    )


# Flaws: what can be wrong with a row, what is done about it, and how it is said: counted and with its line.


LONGEST = 100_000  # characters; a model reads the first few hundred tokens
_LINES_NAMED = 5


class Flaw(IntFlag):
    """What is wrong with a row; it may be several things."""

    NONE = 0
    NO_TEXT = 1
    TEXT_OF_NO_USE = 2
    NO_LABEL = 4
    LABEL_OF_NO_USE = 8
    CONTROL_CHARACTERS = 16
    HALF_CHARACTERS = 32
    VERY_LONG = 64


DROPPED = Flaw.NO_TEXT | Flaw.TEXT_OF_NO_USE | Flaw.NO_LABEL | Flaw.LABEL_OF_NO_USE
WITHOUT_TEXT = Flaw.NO_TEXT | Flaw.TEXT_OF_NO_USE
_SAID = {
    Flaw.NO_TEXT: "without text dropped",
    Flaw.TEXT_OF_NO_USE: "whose text is a list, an object or bytes dropped",
    Flaw.NO_LABEL: "without a label dropped",
    Flaw.LABEL_OF_NO_USE: "whose label is a list, an object or bytes dropped",
    Flaw.CONTROL_CHARACTERS: "with control characters, which are read as spaces",
    Flaw.HALF_CHARACTERS: "with half a character (a lone surrogate), which is read as '?'",
    Flaw.VERY_LONG: f"of more than {LONGEST:,} characters, of which the first are read",
}


def clean(value: Any) -> tuple[str, Flaw]:
    """A cell as text that every later stage can take, and what was wrong with it."""
    if isinstance(value, (list, tuple, dict, bytes)):
        return "", Flaw.TEXT_OF_NO_USE
    text, flaws = "" if value is None or value != value else str(value).strip(), Flaw.NONE  # NaN is not even itself
    if len(text) > LONGEST:
        text, flaws = text[:LONGEST], flaws | Flaw.VERY_LONG
    if not text.isprintable():
        text, found = _printable(text)
        flaws |= found
    return text, flaws if text else flaws | Flaw.NO_TEXT


def _printable(text: str) -> tuple[str, Flaw]:
    """Line breaks and tabs are no flaw; what no text holds becomes a space, half a character a question mark."""
    flaws = Flaw.NONE
    if _HALF.search(text):
        text, flaws = text.encode("utf-8", "replace").decode("utf-8"), Flaw.HALF_CHARACTERS
    if text.translate(_CONTROL) != text:
        text, flaws = text.translate(_CONTROL).strip(), flaws | Flaw.CONTROL_CHARACTERS
    return text, flaws


_HALF = re.compile("[\ud800-\udfff]")
_CONTROL = dict.fromkeys((*range(9), 11, 12, *range(14, 32), 127), " ")


def notes_on(name: str, flaws: np.ndarray[Any, np.dtype[np.int64]], lines: Sequence[int]) -> tuple[str, ...]:
    """A line for the user on each flaw there is."""
    said = []
    for flaw, what in _SAID.items():
        where = np.asarray(lines)[(flaws & int(flaw)) != 0]
        if len(where):
            said.append(f"{name}: {len(where):,} row{'s' if len(where) > 1 else ''} {what} ({named(where.tolist())})")
    return tuple(said)


def named(lines: Sequence[int]) -> str:
    """The lines, or the first of them where there are many."""
    shown = ", ".join(str(line) for line in lines[:_LINES_NAMED])
    more = f" and {len(lines) - _LINES_NAMED:,} more" if len(lines) > _LINES_NAMED else ""
    return f"line{'s' if len(lines) > 1 else ''} {shown}{more}"


# Rows: the texts and labels of a source in a file, empty ones dropped and counted.


@dataclass(frozen=True)
class Rows:
    """Clean rows: text, text_pair for pairs, label as the file writes it, the line each stands on, its number."""

    source: Source
    dataset: RowFile
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


def _stored(source: Source, columns: Columns) -> RowFile:
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


# Labels: the values of the label column and the numbers the model knows them by.


@dataclass(frozen=True)
class Labels:
    """Label names in the order of their numbers."""

    names: tuple[str, ...]

    @property
    def ids(self) -> dict[str, int]:
        """Name -> number."""
        return {name: number for number, name in enumerate(self.names)}


def find_labels(rows: Rows, *, will_be_split: bool) -> Labels:
    """Collect the labels: whole numbers in their order, words in the alphabet's."""
    counts = Counter(rows.dataset["label"])
    if len(counts) == 1:
        raise DataError(
            f"{rows.name}: all {len(rows):,} rows have the label '{next(iter(counts))}': "
            "at least two labels are needed to learn a difference."
        )
    if will_be_split:
        _refuse_single_rows(rows, counts)
    return Labels(tuple(sorted(counts, key=_order)))


def about_unknown_labels(name: str, dataset: RowFile, labels: Labels) -> tuple[str, ...]:
    """Rows whose label was never trained cannot be scored."""
    pairs = zip(dataset["line"], dataset["label"], strict=True)
    lines = [line for line, label in pairs if label not in labels.ids]
    return (f"{name}: {len(lines):,} rows with labels unseen in training left out ({named(lines)})",) if lines else ()


def _refuse_single_rows(rows: Rows, counts: Counter[str]) -> None:
    """A label with one row cannot be both trained and validated on."""
    single = [label for label, count in counts.items() if count == 1]
    if not single:
        return
    line = rows.dataset["line"][rows.dataset["label"].index(single[0])]
    more = f" (and {len(single) - 1:,} more)" if len(single) > 1 else ""
    wrong = " Is it the right column?" if len(single) > len(rows) / 10 else ""
    raise DataError(
        f"{rows.name}: the label '{single[0]}'{more} appears only once, on line {line}: "
        f"add rows, remove it, or give --validation a file of its own.{wrong}"
    )


def _order(label: str) -> tuple[int, float, str]:
    try:
        return 0, int(label), label
    except ValueError:
        return 1, 0, label
