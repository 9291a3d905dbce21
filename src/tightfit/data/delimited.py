"""Delimited files: the layout and the rows of CSV and TSV files, and of text files with one text per line."""

from __future__ import annotations

import csv
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tightfit.data.encoding import detect_encoding
from tightfit.data.header import HeaderHints
from tightfit.errors import DataError
from tightfit.messages import Message, msg
from tightfit.system.processes import SharedSetting

_DELIMITERS = (",", ";", "\t")
_QUOTED = re.compile(r'"(?:[^"]|"")*("|$)')
_SAMPLED_RECORDS = 1000
_LONGEST_QUOTE = 60
ONLY_COLUMN = "text"
"""The name of the only column of a file without a header line."""

Record = tuple[int, list[str]]
"""The line on which it starts, and its fields."""


@dataclass(frozen=True)
class Layout:
    """How a file is divided into rows and columns."""

    path: Path
    encoding: str
    delimiter: str | None
    """None if each line is one text."""
    quoting: int
    header: bool
    """Without a header line the columns are named 1, 2, 3, …"""

    def records(self) -> Iterator[Record]:
        """Every line or record that is not blank, the header included."""
        if self.delimiter is None:
            return _lines(self.path, self.encoding)
        return _records(self.path, self.encoding, self.delimiter, self.quoting)

    def rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Every row with its line number."""
        records = self.records()
        names = self._names(next(records)[1])
        for line, values in records if self.header else self.records():
            if len(values) > len(names):
                raise DataError(_too_many_fields(self.path, line, len(values), len(names)))
            yield line, dict(zip(names, values + [""] * (len(names) - len(values)), strict=True))

    def _names(self, first: list[str]) -> list[str]:
        if self.header:
            return _header(self.path, first)
        return [ONLY_COLUMN] if len(first) == 1 else [str(number) for number in range(1, len(first) + 1)]

    def note(self) -> Message | None:
        """What was assumed about the first line, for the user to check."""
        line, fields = next(self.records())
        if self.delimiter is None and not self.header:
            return msg("{path}: each line is read as one text", path=self.path)
        if self.header:
            return None
        if len(fields) == 1:
            quote = fields[0].strip()[:_LONGEST_QUOTE]
            return msg(
                "{path}: no header line, line {line} ('{quote}') is read as a text; "
                "if it is the name of the column, add --text '{quote}'",
                path=self.path,
                line=line,
                quote=quote,
            )
        return msg(
            "{path}: no header line, line {line} is read as a row and columns are numbered from 1",
            path=self.path,
            line=line,
        )


def find_layout(path: Path, hints: HeaderHints) -> Layout:
    """The layout of a file, from its extension, its first records and what is known about its columns."""
    encoding = detect_encoding(path)
    first = _first_line(path, encoding)
    delimiter = _delimiter(path, first)
    if path.suffix.lower() == ".txt" and not _is_table(path, encoding, first.split(delimiter), hints):
        return _with_header(Layout(path, encoding, None, csv.QUOTE_NONE, header=False), hints)
    quoting = csv.QUOTE_MINIMAL
    if delimiter == "\t" and not _is_quoted(path, encoding):
        quoting = csv.QUOTE_NONE  # many TSV files are unquoted: a " is then an ordinary character
    return _with_header(Layout(path, encoding, delimiter, quoting, header=False), hints)


def _with_header(layout: Layout, hints: HeaderHints) -> Layout:
    sample = [values for _, values in itertools.islice(layout.records(), _SAMPLED_RECORDS)]
    return Layout(layout.path, layout.encoding, layout.delimiter, layout.quoting, hints.has_header(sample))


def _is_table(path: Path, encoding: str, first: list[str], hints: HeaderHints) -> bool:
    """Whether a text file has columns: named ones, or as many tabs on each line."""
    names = {cell.strip().strip('"').lower() for cell in first}
    if len(first) > 1 and (names & hints.usual or names & {name.lower() for name in hints.given.all}):
        return True
    if hints.given.numbered and any(name != "1" for name in hints.given.all):
        return True
    lines = itertools.islice(_lines(path, encoding), _SAMPLED_RECORDS)
    tabs = {line.count("\t") for _, [line] in lines}
    return len(tabs) == 1 and tabs != {0}


def _header(path: Path, values: list[str]) -> list[str]:
    names = [value.strip() for value in values]
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        raise DataError(msg("{path} has two columns named '{name}': rename one.", path=path, name=duplicate))
    return names


def _too_many_fields(path: Path, line: int, count: int, expected: int) -> Message:
    return msg(
        "{path} line {line} has {count} fields where the first line has {expected}: "
        'put the text in double quotes ("...").',
        path=path,
        line=line,
        count=count,
        expected=expected,
    )


def _first_line(path: Path, encoding: str) -> str:
    with path.open(encoding=encoding, newline="") as file:
        first = next((line for line in file if line.strip()), None)
    if first is None:
        raise DataError(msg("{path} is empty: give a file with a header line and rows below it.", path=path))
    return first


def _delimiter(path: Path, first: str) -> str:
    """The most frequent one on the first line, outside of quotes."""
    if path.suffix.lower() == ".tsv" and "\t" in first:
        return "\t"
    return max(_DELIMITERS, key=_QUOTED.sub("", first).count)


def _is_quoted(path: Path, encoding: str) -> bool:
    """Whether every record parses with quotes and has the same number of fields."""
    try:
        widths = {len(values) for _, values in _records(path, encoding, "\t", csv.QUOTE_MINIMAL)}
    except DataError:
        return False
    return len(widths) == 1


def _lines(path: Path, encoding: str) -> Iterator[Record]:
    with path.open(encoding=encoding) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, [line.rstrip("\n")]


def _records(path: Path, encoding: str, delimiter: str, quoting: int) -> Iterator[Record]:
    """Every non-blank record with the line it starts on."""
    with path.open(encoding=encoding, newline="") as file, _field_limit.changed():
        reader = csv.reader(file, delimiter=delimiter, quoting=quoting, strict=True)  # type: ignore[arg-type]
        while True:
            line = reader.line_num + 1
            try:
                values = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise DataError(
                    msg(
                        "{path} line {line}: invalid quoting ({reason}): "
                        'write a quote inside a quoted text twice ("").',
                        path=path,
                        line=line,
                        reason=str(error),
                    )
                ) from None
            if any(value.strip() for value in values):
                yield line, values


def _accept_long_fields() -> Callable[[], object]:
    """Raise csv's field size limit of 131,072 characters; return a function that restores it."""
    return partial(csv.field_size_limit, csv.field_size_limit(sys.maxsize))


_field_limit = SharedSetting(_accept_long_fields)
