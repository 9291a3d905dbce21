"""Which encoding a text file is in: utf-8, with or without a mark, gb18030 or utf-16."""

from __future__ import annotations

import codecs
from pathlib import Path

from tightfit.errors import DataError

_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_CHUNK = 1 << 20


def detect_encoding(path: Path) -> str:
    """Read the file once with each candidate; the first that decodes every byte is it."""
    with path.open("rb") as file:
        start = file.read(4)
    for mark, encoding in _MARKS.items():
        if start.startswith(mark):
            _refuse_undecodable(path, encoding)
            return encoding
    line = _first_undecodable_line(path, "utf-8")
    if line is None:
        return "utf-8"
    if _first_undecodable_line(path, "gb18030") is None:
        return "gb18030"
    raise DataError(
        f"{path} is neither utf-8 nor gb18030 (first bad byte on line {line}): save it as utf-8 and try again."
    )


def _refuse_undecodable(path: Path, encoding: str) -> None:
    """A file may begin with a mark and not keep to it."""
    line = _first_undecodable_line(path, encoding)
    if line is not None:
        raise DataError(
            f"{path} is marked as {encoding.removesuffix('-sig')} and is not (first bad byte on line {line}): "
            "save it as utf-8 and try again."
        )


def _first_undecodable_line(path: Path, encoding: str) -> int | None:
    decoder = codecs.getincrementaldecoder(encoding)()
    line = 1
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
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
