"""Columns: which columns of a file hold the text and the label; a task says by which names they are found."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tightfit.errors import DataError, suggest
from tightfit.messages import Message, msg

_LONGEST_QUOTE = 30


@dataclass(frozen=True)
class ColumnNames:
    """The usual names of a task's columns, in the order in which they are looked for."""

    text: tuple[tuple[str, ...], ...]
    """Columns that are read together: pairs first, then single columns."""
    label: tuple[str, ...] = ()
    """Empty for a task that learns from the text alone."""
    max_labels: int = 1
    """The most label columns that a row may have."""
    first_two_unnamed: bool = False
    """Whether the first two columns of a file without a header line are the text and what is to be predicted."""
    whole: tuple[str, ...] = ()
    """Columns that hold both the text and what is to be predicted."""

    @property
    def max_texts(self) -> int:
        """The most text columns that a row may have."""
        return max(len(group) for group in self.text)

    @property
    def single(self) -> tuple[str, ...]:
        """The names of columns that hold the text on their own."""
        return tuple(group[0] for group in self.text if len(group) == 1)

    @property
    def usual(self) -> frozenset[str]:
        """All of them."""
        return frozenset((*(name for group in self.text for name in group), *self.label, *self.whole))


@dataclass(frozen=True)
class Columns:
    """The columns that a task reads, or those that the user named."""

    text: tuple[str, ...] = ()
    """What the model is given: one column, or two for text pairs."""
    label: tuple[str, ...] = ()
    """What it learns to predict; empty if the rows are read without it."""

    @classmethod
    def of(cls, text: str | None, label: str | None) -> Columns:
        """The columns named with --text and --label, where several are separated by commas."""
        return cls(_split(text), _split(label))

    @property
    def all(self) -> tuple[str, ...]:
        """The text columns, then the label columns."""
        return (*self.text, *self.label)

    @property
    def numbered(self) -> bool:
        """Whether they are named by number, as in a file without a header line."""
        return bool(self.all) and not self.names

    @property
    def names(self) -> tuple[str, ...]:
        """Those that are not numbers."""
        return tuple(name for name in self.all if not name.isdigit())

    def by_position(self, columns: Sequence[str]) -> Columns:
        """Numbers as the names of the columns that they count, from 1, unless columns are named so."""
        if not self.numbered or set(self.all) <= set(columns):
            return self
        names = {str(number): name for number, name in enumerate(columns, 1)}
        return Columns(*(tuple(names.get(name, name) for name in part) for part in (self.text, self.label)))


def find_columns(
    name: str, columns: list[str], names: ColumnNames, given: Columns | None = None, *, need_label: bool = True
) -> Columns:
    """The given columns, or those with the usual names, or the only remaining column."""
    given = given or Columns()
    _check_given(name, columns, names, given)
    if not given.label and (whole := _whole_column(columns, names, given)):
        return Columns((whole,))
    need_label = need_label and bool(names.label)
    label = given.label or next(_labels_by_name(columns, names, given.text), ())
    text = given.text or next(_texts_by_name(columns, names, label), ())
    rest = [column for column in columns if column not in (*text, *label)]
    if not text and len(rest) == 1:
        text = (rest.pop(),)
    if not label and len(rest) == 1 and need_label:
        label = (rest[0],)
    if not text:
        raise DataError(_not_found(name, "text", columns, names.single))
    if not label and need_label:
        raise DataError(_not_found(name, "label", columns, names.label))
    return Columns(text, label)


def _whole_column(columns: Iterable[str], names: ColumnNames, given: Columns) -> str | None:
    """A column that holds both the text and what is to be predicted, unless another was given."""
    usual = (column for column in columns if column.strip().lower() in names.whole)
    return next((column for column in usual if given.text in ((), (column,))), None)


def other_candidates(
    name: str, columns: Iterable[str], names: ColumnNames, given: Columns, taken: Columns
) -> Iterator[Message]:
    """Notes on columns that were taken by their name where others have a usual name too."""
    columns = list(columns)
    texts = list(_texts_by_name(columns, names, taken.all))
    if texts and not given.text:
        yield msg(
            "{name}: the text is taken from {taken}, not from {others}: choose another column with --text",
            name=name,
            taken=_quoted(taken.text),
            others=[_quoted(group) for group in texts],
        )
    labels = list(_labels_by_name(columns, names, taken.all))
    if labels and taken.label and not given.label:
        yield msg(
            "{name}: the label is taken from {taken}, not from {others}: choose another column with --label",
            name=name,
            taken=_quoted(taken.label),
            others=[_quoted(group) for group in labels],
        )


def _quoted(columns: Iterable[str]) -> str:
    return " + ".join(f"'{column}'" for column in columns)


def columns_by_content(name: str, sample: Sequence[tuple[int, Mapping[str, str]]], *, need_label: bool) -> Columns:
    """Of a file without a header line: the column of the longest texts, and the only other one if it holds labels."""
    line, first = sample[0]
    values = {column: [row.get(column, "") for _, row in sample] for column in first}
    *others, text = sorted(values, key=lambda column: sum(map(len, values[column])))
    if not need_label:
        return Columns((text,))
    if len(others) == 1 and _are_labels(values[others[0]]):
        return Columns((text,), (others[0],))
    raise DataError(
        msg(
            "{name} has no header line, and which column is which is not clear (line {line}: {cells}): "
            "name them by number, such as --text {text} --label {label}.",
            name=name,
            line=line,
            cells=[f"{column} = '{cell[:_LONGEST_QUOTE]}'" for column, cell in first.items()],
            text=text,
            label=others[0],
        )
    )


def _are_labels(values: Sequence[str]) -> bool:
    """Whether they are numbers or mostly occur more than once."""
    return all(map(is_number, values)) or len(set(values)) <= max(2, len(values) / 2)


def is_number(cell: str) -> bool:
    """Whether a cell holds a finite number."""
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def _split(option: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in option.split(",")) if option else ()


def _check_given(name: str, columns: list[str], names: ColumnNames, given: Columns) -> None:
    for column in given.all:
        if column not in columns:
            raise DataError(no_column(name, column, columns))
    count = len(given.text)
    if count > names.max_texts == 2:
        raise DataError(msg("--text takes one column, or two for text pairs, not {count}.", count=count))
    if count > names.max_texts:
        raise DataError(msg("--text takes one column, not {count}.", count=count))
    if len(given.label) > names.max_labels:
        raise DataError(msg("--label takes one column, not {count}.", count=len(given.label)))


def no_column(name: str, column: str, columns: Iterable[str]) -> Message:
    """That a file lacks a column."""
    hint = suggest(column, columns)
    return msg("{name} has no column '{column}': {suggestion}", name=name, column=column, suggestion=hint)


def _labels_by_name(columns: Iterable[str], names: ColumnNames, taken: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Columns with a usual name of a label, the most usual first."""
    by_lower = {column.strip().lower(): column for column in columns if column not in taken}
    return ((by_lower[name],) for name in names.label if name in by_lower)


def _texts_by_name(columns: Iterable[str], names: ColumnNames, taken: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Columns with usual names of a text or of a pair, the most usual first."""
    by_lower = {column.strip().lower(): column for column in columns if column not in taken}
    found = (group for group in names.text if all(name in by_lower for name in group))
    return (tuple(by_lower[name] for name in group) for group in found)


def _not_found(name: str, option: str, columns: list[str], common: Sequence[str]) -> Message:
    near = next((c for c in columns if difflib.get_close_matches(c.lower(), common, n=1, cutoff=0.75)), None)
    return msg(
        "No {option} column was found in {name} (columns: {columns}): name it with {example}, "
        "or by number (--text 1 --label 2) if the file has no header line.",
        option=option,
        name=name,
        columns=columns,
        example=f"--{option} {near}" if near else f"--{option}",
    )
