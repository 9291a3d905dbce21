"""Readers: the columns and rows of CSV, TSV, JSON and Parquet files, in utf-8, gb18030 or utf-16."""

from __future__ import annotations

import codecs
import csv
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tightfit.errors import DataError
from tightfit.messages import msg
from tightfit.optional_imports import ARROW, allow_imports
from tightfit.processes import SharedSetting

_BOMS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_CHUNK_BYTES = 1 << 20
_SAMPLED_ROWS = 100

Row = tuple[int, dict[str, Any]]
"""The line number, and the cells by column."""


# Encodings


def detect_encoding(path: Path) -> str:
    """The first of utf-8 and gb18030 that decodes the whole file, or the encoding of its byte order mark."""
    with path.open("rb") as file:
        start = file.read(4)
    for bom, encoding in _BOMS.items():
        if start.startswith(bom):
            _check_decodable(path, encoding)
            return encoding
    line = _first_undecodable_line(path, "utf-8")
    if line is None:
        return "utf-8"
    if _first_undecodable_line(path, "gb18030") is None:
        return "gb18030"
    raise DataError(
        msg(
            "{path} is neither utf-8 nor gb18030 (first bad byte on line {line}): save it as utf-8 and try again.",
            path=path,
            line=line,
        )
    )


def _check_decodable(path: Path, encoding: str) -> None:
    """A byte order mark does not guarantee that the rest decodes."""
    line = _first_undecodable_line(path, encoding)
    if line is not None:
        raise DataError(
            msg(
                "{path} has a byte order mark of {encoding} "
                "but does not decode as such (first bad byte on line {line}): save it as utf-8 and try again.",
                path=path,
                encoding=encoding.removesuffix("-sig"),
                line=line,
            )
        )


def _first_undecodable_line(path: Path, encoding: str) -> int | None:
    decoder = codecs.getincrementaldecoder(encoding)()
    line = 1
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            try:
                decoder.decode(chunk)
            except UnicodeDecodeError as error:
                return line + chunk[: error.start].count(b"\n")
            line += chunk.count(b"\n")
    try:
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return line
    return None


# Tables


@dataclass(frozen=True)
class Table:
    """One data file, streamed from disk each time it is read."""

    path: Path
    header: bool = True
    """False for files without a header line: the columns are then named 1, 2, 3, …"""

    def rows(self) -> Iterator[Row]:
        """Every row with its line number, or its row number in formats without lines."""
        return _READERS[self.path.suffix.lower()](self)

    def columns(self) -> list[str]:
        """The column names, from the first rows: a JSON row may omit some."""
        names = {name: None for _, row in itertools.islice(self.rows(), _SAMPLED_ROWS) for name in row}
        if not names:
            raise DataError(msg("{path} has a header line and no rows below it: add rows.", path=self.path))
        return list(names)


def is_table(path: Path) -> bool:
    """Whether a reader exists for the file's extension."""
    return path.suffix.lower() in _READERS


def supported_extensions() -> list[str]:
    """The supported extensions, for messages."""
    return list(_READERS)


def _delimited(table: Table) -> Iterator[Row]:
    encoding = detect_encoding(table.path)
    delimiter = _delimiter(table.path, encoding)
    quoting = csv.QUOTE_MINIMAL
    if delimiter == "\t" and not _is_quoted(table.path, encoding):
        quoting = csv.QUOTE_NONE  # many TSV files are unquoted: a " is then an ordinary character
    names: list[str] | None = None
    for line, values in _records(table.path, encoding, delimiter, quoting):
        if names is None:
            names = _header(table.path, values) if table.header else [str(i + 1) for i in range(len(values))]
            if table.header:
                continue
        if len(values) > len(names):
            raise DataError(
                msg(
                    "{path} line {line} has {count} fields where the first line has {expected}: "
                    'put the text in double quotes ("...").',
                    path=table.path,
                    line=line,
                    count=len(values),
                    expected=len(names),
                )
            )
        yield line, dict(zip(names, values + [""] * (len(names) - len(values)), strict=True))


def _header(path: Path, values: list[str]) -> list[str]:
    names = [value.strip() for value in values]
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        raise DataError(msg("{path} has two columns named '{name}': rename one.", path=path, name=duplicate))
    return names


def _delimiter(path: Path, encoding: str) -> str:
    with path.open(encoding=encoding, newline="") as file:
        first = next((line for line in file if line.strip()), None)
    if first is None:
        raise DataError(msg("{path} is empty: give a file with a header line and rows below it.", path=path))
    if path.suffix.lower() == ".tsv" and "\t" in first:
        return "\t"
    return max((",", ";", "\t"), key=first.count)


def _is_quoted(path: Path, encoding: str) -> bool:
    """Whether every record parses with quotes and has the same number of fields."""
    try:
        widths = {len(values) for _, values in _records(path, encoding, "\t", csv.QUOTE_MINIMAL)}
    except DataError:
        return False
    return len(widths) == 1


def _records(path: Path, encoding: str, delimiter: str, quoting: int) -> Iterator[tuple[int, list[str]]]:
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
    """The limit of 131,072 characters is too small for some texts."""
    return partial(csv.field_size_limit, csv.field_size_limit(sys.maxsize))


_field_limit = SharedSetting(_accept_long_fields)


def _json_lines(table: Table) -> Iterator[Row]:
    with table.path.open(encoding=detect_encoding(table.path)) as file:
        for line, content in enumerate(file, 1):
            if content.strip():
                yield line, _object(table.path, line, _parse_json(table.path, content, line))


def _json(table: Table) -> Iterator[Row]:
    """A list of objects, or an object that contains one (`{"data": [...]}`); otherwise one object per line."""
    text = table.path.read_text(encoding=detect_encoding(table.path))
    if not text.strip():
        raise DataError(msg("{path} is empty: give a list of objects with a text and a label.", path=table.path))
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        yield from _json_lines(table)
        return
    if isinstance(content, dict):
        content = _rows_in_object(content)
    if not isinstance(content, list):
        raise DataError(msg("{path} must contain a list of objects with a text and a label.", path=table.path))
    for number, item in enumerate(content, 1):
        yield number, _object(table.path, number, item)


def _rows_in_object(content: dict[str, Any]) -> list[Any]:
    """Rows from `{"data": [...]}`, from columns as lists of equal length, or from a single row."""
    lists = {name: value for name, value in content.items() if isinstance(value, list)}
    if len(lists) > 1 and len({len(value) for value in lists.values()}) == 1:
        return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]
    return next(iter(lists.values())) if len(lists) == 1 else [content]


def _parse_json(path: Path, content: str, line: int) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        not_json = msg(
            "{path} line {line} is not JSON ({reason}): correct or remove it.", path=path, line=line, reason=str(error)
        )
        raise DataError(not_json) from None


def _object(path: Path, number: int, item: Any) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise DataError(
            msg("{path} entry {number} is not a JSON object: correct or remove it.", path=path, number=number)
        )
    return item


def _parquet(table: Table) -> Iterator[Row]:
    allow_imports(*ARROW)
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(table.path) as file:
            for batch in file.iter_batches():
                for item in batch.to_pylist():
                    number += 1
                    yield number, item
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise DataError(
            msg("{path} is not a readable Parquet file ({reason}).", path=table.path, reason=reason)
        ) from None


_READERS = {
    ".csv": _delimited,
    ".tsv": _delimited,
    ".txt": _delimited,
    ".json": _json,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".parquet": _parquet,
}
