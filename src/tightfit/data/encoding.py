"""Encodings: utf-8, gb18030 or utf-16, found by reading the whole file."""

from __future__ import annotations

import codecs
from pathlib import Path

from tightfit.errors import DataError
from tightfit.messages import msg

_BOMS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_CHUNK_BYTES = 1 << 20


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
