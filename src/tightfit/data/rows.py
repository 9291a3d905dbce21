"""Rows: read and clean every row of the data, in the way of a task.

Broken rows are repaired or dropped; a note counts them and names their lines.
"""

from __future__ import annotations

import itertools
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

from tightfit.data.columns import ColumnNames, Columns, columns_by_content, find_columns, no_column, other_candidates
from tightfit.data.header import HeaderHints
from tightfit.data.row_file import RowFile, store_rows
from tightfit.data.sources import Source, find_sources
from tightfit.errors import DataError
from tightfit.messages import Message, msg

LONGEST_TEXT = 100_000  # characters; a model reads the first few hundred tokens
_LINES_LISTED = 5


# Cleaning


@dataclass(frozen=True)
class Flaw:
    """Something wrong with a row."""

    message: Message
    """What is wrong and what was done about it, after "3 rows"."""
    dropped: bool = False
    """Whether the row cannot be used."""
    kept: Message | None = None
    """What is said of a row that cannot be used and stays in a file with predictions."""


Flaws = tuple[Flaw, ...]

_UNPREDICTED = msg("without text, kept without a prediction")
NO_TEXT = Flaw(msg("without text dropped"), dropped=True, kept=_UNPREDICTED)
NOT_TEXT = Flaw(
    msg("whose text is a list, an object or bytes dropped"),
    dropped=True,
    kept=msg("whose text is a list, an object or bytes, kept without a prediction"),
)
CONTROL_CHARACTERS = Flaw(msg("with control characters, replaced by spaces"))
LONE_SURROGATES = Flaw(msg("with a lone surrogate (half a character), replaced by '?'"))
VERY_LONG = Flaw(msg("longer than {limit:,} characters, truncated", limit=LONGEST_TEXT))


def clean(value: Any, *, limit: int | None = LONGEST_TEXT) -> tuple[str, Flaws]:
    """A cell as text that can be stored and tokenized, and what was wrong with it; `limit` in characters."""
    if isinstance(value, (list, tuple, dict, bytes)):
        return "", (NOT_TEXT,)
    text = "" if value is None or value != value else str(value).strip()  # NaN != NaN
    flaws: Flaws = ()
    if limit is not None and len(text) > limit:
        text, flaws = text[:limit], (VERY_LONG,)
    if not text.isprintable():
        text, found = _printable(text)
        flaws = (*found, *flaws)
    return text, flaws if text else (NO_TEXT, *flaws)


def clean_texts(row: Mapping[str, Any], columns: Columns) -> tuple[dict[str, str], Flaws]:
    """The text of a row, and the second one of a pair, which may be empty."""
    text, flaws = clean(row.get(columns.text[0]))
    if len(columns.text) == 1:
        return {"text": text}, flaws
    pair, pair_flaws = clean(row.get(columns.text[1]))
    return {"text": text, "text_pair": pair}, (*flaws, *(flaw for flaw in pair_flaws if flaw is not NO_TEXT))


def _printable(text: str) -> tuple[str, Flaws]:
    """Replace control characters by spaces and lone surrogates by '?'; line breaks and tabs stay."""
    flaws: Flaws = ()
    if _SURROGATE.search(text):
        text, flaws = text.encode("utf-8", "replace").decode("utf-8"), (LONE_SURROGATES,)
    if text.translate(_CONTROL) != text:
        text, flaws = text.translate(_CONTROL).strip(), (CONTROL_CHARACTERS, *flaws)
    return text, flaws


_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTROL = dict.fromkeys((*range(9), 11, 12, *range(14, 32), 127), " ")


def flaw_note(name: str, flaw: Message, lines: Sequence[int]) -> Message:
    """What is wrong with the rows on these lines of a file."""
    count = len(lines)
    rows = msg("{count:,} rows", count=count) if count > 1 else msg("{count:,} row", count=count)
    return msg("{name}: {rows} {flaw} ({lines})", name=name, rows=rows, flaw=flaw, lines=_format_lines(lines))


def _format_lines(lines: Sequence[int]) -> Message:
    """The line numbers, or the first few and how many more there are."""
    if len(lines) == 1:
        return msg("line {line}", line=lines[0])
    shown, more = list(lines[:_LINES_LISTED]), len(lines) - _LINES_LISTED
    if more > 0:
        return msg("lines {lines} and {more:,} more", lines=shown, more=more)
    return msg("lines {lines}", lines=shown)


# Rows


@dataclass(frozen=True)
class Rows:
    """Clean rows: the cells that the task reads, the line number, the row's index."""

    source: Source
    dataset: RowFile
    columns: Columns
    notes: tuple[Message, ...] = ()
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


class RowReader(Protocol):
    """What reading needs to know of a task."""

    column_names: ClassVar[ColumnNames]
    no_label: ClassVar[Message]
    """What is wrong with a label column that no row can be used with, after "the column 'x'"."""

    def read(self, row: Mapping[str, Any], columns: Columns) -> tuple[dict[str, Any], Flaws]:
        """The cells of a row and their flaws; without a label if `columns` has none."""
        ...


def load_rows(
    name: str, reader: RowReader, given: Columns | None = None, *, need_label: bool = True
) -> tuple[Rows, Rows | None]:
    """Read a data file, folder or hub dataset: its rows, and its validation rows if it has any."""
    return read_sources(open_data(name, reader, given), reader, given, need_label=need_label)


def open_data(name: str, reader: RowReader, given: Columns | None = None) -> tuple[Source, Source | None]:
    """The training rows of a file, folder or hub dataset, and its validation rows if it has any, not read yet."""
    return find_sources(name, HeaderHints(reader.column_names.usual, given or Columns()))


def read_sources(
    sources: tuple[Source, Source | None], reader: RowReader, given: Columns | None = None, *, need_label: bool = True
) -> tuple[Rows, Rows | None]:
    """Read what `open_data` found, in the given columns or those that can be found."""
    train, validation = sources
    columns = columns_of(train, reader.column_names, given or Columns(), need_label=need_label)
    rows = read_rows(train, reader, columns, kept=not need_label)
    others = other_candidates(train.name, train.columns(), reader.column_names, given or Columns(), columns)
    rows = replace(rows, notes=(*others, *rows.notes))
    return rows, read_rows(validation, reader, columns, kept=not need_label) if validation else None


def columns_of(source: Source, names: ColumnNames, given: Columns, *, need_label: bool = True) -> Columns:
    """The columns of a source that a task reads: by name, or by their content if there is no header line."""
    columns = source.columns()
    given = given.by_position(columns)
    if source.numbered and len(columns) > 1 and not given.all and names.first_two_unnamed:
        given = Columns((columns[0],), (columns[1],) if need_label else ())
    elif source.numbered and len(columns) > 1 and not given.all:
        given = columns_by_content(source.name, source.sample(), need_label=need_label and bool(names.label))
    return find_columns(source.name, columns, names, given, need_label=need_label)


def read_rows(source: Source, reader: RowReader, columns: Columns, *, kept: bool = False) -> Rows:
    """Read a source into a row file, without those that cannot be used; they are `kept` in a file with predictions."""
    _check_columns(source, columns)
    found = _FoundFlaws()
    rows = _usable_rows(source, reader, columns, found)
    first = next(rows, None)
    if first is None:
        raise DataError(_nothing_usable(source.name, reader, columns, found))
    dataset = store_rows(itertools.chain([first], rows), {name: type(value) for name, value in first.items()})
    return Rows(source, dataset, columns, (*source.notes, *found.notes(source.name, kept=kept)))


def _check_columns(source: Source, columns: Columns) -> None:
    for table in source.tables:
        found = table.columns()
        missing = [name for name in columns.all if name not in found]
        if missing:
            name = getattr(table, "path", source.name)
            raise DataError(no_column(str(name), missing[0], found))


def _usable_rows(source: Source, reader: RowReader, columns: Columns, found: _FoundFlaws) -> Iterator[dict[str, Any]]:
    for number, (line, row) in enumerate(source.rows()):
        cells, flaws = reader.read(row, columns)
        if flaws:
            found.add(flaws, line)
        if not any(flaw.dropped for flaw in flaws):
            yield {**cells, "line": line, "row": number}


class _FoundFlaws:
    """The lines on which each flaw was found."""

    def __init__(self) -> None:
        self.lines: dict[Flaw, array[int]] = {}
        self.rows = self.rows_without_text = 0

    def add(self, flaws: Flaws, line: int) -> None:
        """Count a row with these flaws; each counts once, in whatever cells it is."""
        for flaw in dict.fromkeys(flaws):
            self.lines.setdefault(flaw, array("q")).append(line)
        self.rows += 1
        self.rows_without_text += NO_TEXT in flaws or NOT_TEXT in flaws

    def notes(self, name: str, *, kept: bool) -> tuple[Message, ...]:
        """One note for each kind of flaw, those of dropped rows first; rows to predict for are kept."""
        found = sorted(self.lines.items(), key=lambda item: not item[0].dropped)
        return tuple(flaw_note(name, (kept and flaw.kept) or flaw.message, lines) for flaw, lines in found)


def _nothing_usable(name: str, reader: RowReader, columns: Columns, found: _FoundFlaws) -> Message:
    if found.rows_without_text == found.rows:
        column = columns.text[0]
        problem = msg("the column '{column}' is empty in every row: choose another with --text.", column=column)
    elif not columns.label:
        return msg("{problem}: no row is left.", problem=found.notes(name, kept=False)[0])
    else:
        problem = msg(
            "the column '{column}' {problem} (line {line}): choose another with --label.",
            column=columns.label[0],
            problem=reader.no_label,
            line=min(lines[0] for flaw, lines in found.lines.items() if flaw.dropped),
        )
    return msg("{name}: {problem}", name=name, problem=problem)
