"""Readers: the columns and rows of a data file, by its extension."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tightfit.data.conll import EXTENSIONS, conll_rows, is_conll
from tightfit.data.delimited import find_layout
from tightfit.data.header import HeaderHints
from tightfit.data.json_files import json_lines, json_rows
from tightfit.errors import DataError
from tightfit.messages import Message, msg
from tightfit.optional_imports import ARROW, allow_imports

_SAMPLED_ROWS = 100

Row = tuple[int, dict[str, Any]]
"""The line number, and the cells by column."""


@dataclass(frozen=True)
class Table:
    """One data file, streamed from disk each time it is read."""

    path: Path
    rows: Callable[[], Iterator[Row]]
    """Every row with its line number, or its row number in formats without lines."""
    header: bool = True
    """False for files without a header line: the columns are then named 1, 2, 3, …"""
    notes: tuple[Message, ...] = ()

    def columns(self) -> list[str]:
        """The column names, from the first rows: a JSON row may omit some."""
        names = {name: None for _, row in itertools.islice(self.rows(), _SAMPLED_ROWS) for name in row}
        if not names:
            raise DataError(msg("{path} has a header line and no rows below it: add rows.", path=self.path))
        return list(names)


def open_table(path: Path, hints: HeaderHints) -> Table:
    """The table in a file."""
    if path.suffix.lower() in _OTHERS:
        return Table(path, partial(_OTHERS[path.suffix.lower()], path))
    if path.suffix.lower() != ".csv" and is_conll(path):
        return Table(path, partial(conll_rows, path))
    layout = find_layout(path, hints)
    note = layout.note()
    return Table(path, layout.rows, layout.header, (note,) if note else ())


def has_supported_extension(path: Path) -> bool:
    """Whether a reader exists for the file's extension."""
    return path.suffix.lower() in supported_extensions()


def supported_extensions() -> list[str]:
    """The supported extensions, for messages."""
    return [*_DELIMITED, *EXTENSIONS, *_OTHERS]


def _parquet(path: Path) -> Iterator[Row]:
    allow_imports(*ARROW)
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches():
                for item in batch.to_pylist():
                    number += 1
                    yield number, item
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise DataError(msg("{path} is not a readable Parquet file ({reason}).", path=path, reason=reason)) from None


_DELIMITED = (".csv", ".tsv", ".txt")
_OTHERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".json": json_rows,
    ".jsonl": json_lines,
    ".ndjson": json_lines,
    ".parquet": _parquet,
}
