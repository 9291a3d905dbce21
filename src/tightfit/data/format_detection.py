"""Format detection: guess from the columns and first rows which kind of dataset a file is.

Every task defines how its own format is detected. This module defines the formats that no task supports, so that such
files are rejected instead of being trained on as labelled texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tightfit.messages import Message, msg

_LONGEST_QUOTE = 60
_TAG = re.compile(r"(O|[BIESLUM]-\S+)$")
_LABELS = ("label", "labels", "class", "category", "tags", "标签", "类别")


@dataclass(frozen=True)
class Sample:
    """The first rows of the data, with their line numbers."""

    rows: Sequence[tuple[int, Mapping[str, Any]]]

    @property
    def columns(self) -> dict[str, str]:
        """Their names, by the same in lower case."""
        return {name.strip().lower(): name for _, row in self.rows for name in row}

    def cells(self, column: str) -> Iterator[tuple[int, Any]]:
        """The cells of a column that are not empty, with their lines."""
        return ((line, row[column]) for line, row in self.rows if row.get(column) not in (None, ""))

    @property
    def labelled(self) -> bool:
        """Whether a column is named as that of labels usually is."""
        return any(name in self.columns for name in _LABELS)


_NO_TASK = msg(
    "tightfit has no task for this (tightfit tasks lists them); if its rows also have labels to learn, "
    "name a text and a label column with --text and --label."
)


@dataclass(frozen=True)
class DatasetFormat:
    """How one kind of data can be told from others."""

    what: Message
    """What it is, after "looks like"."""
    find: Callable[[Sample], Message | None]
    """What shows it: columns or a line of the sample; None if nothing does."""
    instead: Message
    """What can be done if it is not of the task at hand: another task, or another way to write it."""


def _quoted(line: int, cell: Any) -> Message:
    return msg("line {line}: {cell}", line=line, cell=f"{cell!s:.{_LONGEST_QUOTE}}")


def _named(*groups: tuple[str, ...]) -> Callable[[Sample], Message | None]:
    """Finds columns by name, any of these groups, in data without a label column."""

    def find(sample: Sample) -> Message | None:
        columns = sample.columns
        found = next((group for group in groups if all(name in columns for name in group)), None)
        if found is None or sample.labelled:
            return None
        return msg("columns {columns}", columns=[columns[name] for name in found])

    return find


def _cells(is_one: Callable[[Any], bool], columns: tuple[str, ...] | None = None) -> Callable[[Sample], Message | None]:
    """Finds the first cell, of some or all columns, that is one of this kind."""

    def find(sample: Sample) -> Message | None:
        wanted = [name for lower, name in sample.columns.items() if columns is None or lower in columns]
        found = ((name, cell) for name in wanted for cell in sample.cells(name) if is_one(cell[1]))
        name, (line, cell) = next(found, (None, (0, None)))
        return None if name is None else msg("column '{name}', {cell}", name=name, cell=_quoted(line, cell))

    return find


def _first(*finders: Callable[[Sample], Message | None]) -> Callable[[Sample], Message | None]:
    return lambda sample: next(filter(None, (find(sample) for find in finders)), None)


# Named entities


def _tagged_tokens(sample: Sample) -> Message | None:
    """One token and its tag per line: the last field of most lines is `O` or `B-…`."""
    lines = [(line, " ".join(str(cell) for cell in row.values()).split()) for line, row in sample.rows]
    tagged = [(line, fields) for line, fields in lines if len(fields) > 1 and _TAG.match(fields[-1])]
    entity = next(((line, " ".join(fields)) for line, fields in tagged if fields[-1] != "O"), None)
    return _quoted(*entity) if entity and len(tagged) >= 0.9 * len(lines) else None


def _is_span(cell: Any) -> bool:
    """[[0, 3, "PER"]] or [{"start": 0, "end": 3, …}], as annotation tools export."""
    first = cell[0] if isinstance(cell, list) and cell else None
    if isinstance(first, list):
        return len(first) == 3 and all(isinstance(value, int) for value in first[:2])
    return isinstance(first, dict) and any(f"start{end}" in first for end in ("", "_offset"))


# Texts to generate


def _is_chat(cell: Any) -> bool:
    first = cell[0] if isinstance(cell, list) and cell else None
    return isinstance(first, dict) and ({"role", "content"} <= set(first) or {"from", "value"} <= set(first))


def _is_translation(cell: Any) -> bool:
    return isinstance(cell, dict) and len(cell) > 1 and all(isinstance(text, str) for text in cell.values())


# Several labels


def _is_list_of_labels(cell: Any) -> bool:
    return isinstance(cell, list) and len(cell) > 1 and all(isinstance(label, (str, int)) for label in cell)


def flag_columns(sample: Sample) -> list[str]:
    """The columns of 0 and 1."""
    return [name for name in sample.columns.values() if _are_flags([cell for _, cell in sample.cells(name)])]


def _several_flags(sample: Sample) -> Message | None:
    """Three or more columns of 0 and 1, and none that is named as labels are."""
    found = flag_columns(sample)
    return msg("columns {columns} of 0 and 1", columns=found) if len(found) > 2 and not sample.labelled else None


def _are_flags(cells: list[Any]) -> bool:
    return {str(cell) for cell in cells} == {"0", "1"}


def _is_fasttext(cell: Any) -> bool:
    return isinstance(cell, str) and cell.startswith("__label__")


def _plain_texts(sample: Sample) -> Message | None:
    """A single column of texts in no other format: there is nothing to learn to predict."""
    (name, *more), (line, row) = list(sample.columns.values()), sample.rows[0]
    if more or not isinstance(row.get(name), str) or any(each.find(sample) for each in UNSUPPORTED_FORMATS):
        return None
    return _quoted(line, row[name])


_AS_CONLL = msg("write it as a CoNLL file: a token and its tag on each line, and a blank line after each sentence.")
SEVERAL_LABELS = DatasetFormat(
    msg("several labels per text"),
    _first(_cells(_is_list_of_labels, _LABELS), _several_flags),
    msg("train it with --task {task}.", task="multi-label-classification"),
)
INSTRUCTIONS = DatasetFormat(
    msg("chats, or instructions and answers, for a model that generates text"),
    _first(
        _cells(_is_chat),
        _named(
            ("instruction", "output"),
            ("instruction", "response"),
            ("prompt", "completion"),
            ("prompt", "response"),
            ("query", "response"),
        ),
    ),
    msg("train it with --task {task}.", task="instruction-tuning"),
)
TEXT_PAIRS = DatasetFormat(
    msg("texts and other texts to write from them, such as translations or summaries"),
    _named(
        ("document", "summary"), ("article", "highlights"), ("dialogue", "summary"), ("text", "summary"),
        ("source", "target"),
    ),
    msg("train it with --task {task}.", task="text-to-text"),
)  # fmt: skip
PLAIN_TEXTS = DatasetFormat(
    msg("texts without labels"),
    _plain_texts,
    msg(
        "train a language model with --task language-modeling, or give a file with a text and a label in each row, "
        "such as a CSV file with the header label,text."
    ),
)
UNSUPPORTED_FORMATS = (
    DatasetFormat(
        msg("prompts with better and worse answers, for a model that generates text"),
        _named(("prompt", "chosen"), ("chosen", "rejected")),
        _NO_TASK,
    ),
    DatasetFormat(
        msg("translations in one column"),
        _cells(_is_translation, ("translation",)),
        msg("write the two texts in columns of their own, and train it with --task {task}.", task="text-to-text"),
    ),
    DatasetFormat(
        msg("named entities, a token and its tag per line (CoNLL)"),
        _tagged_tokens,
        _AS_CONLL,
    ),
    DatasetFormat(
        msg("named entities or other tags within a text"),
        _cells(_is_span),
        _AS_CONLL,
    ),
    DatasetFormat(
        msg("texts with the labels of fastText"),
        _cells(_is_fasttext),
        msg("write the label and the text in two columns, such as a CSV file with the header label,text."),
    ),
)
"""Data that no task reads so far."""
