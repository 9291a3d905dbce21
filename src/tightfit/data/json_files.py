"""JSON files: rows as a list or as lines, columns as lists, and the layouts of pandas' `DataFrame.to_json`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tightfit.data.encoding import detect_encoding
from tightfit.data.squad import is_squad, squad_rows
from tightfit.errors import DataError
from tightfit.messages import msg


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """One object per line, with its line number."""
    with path.open(encoding=detect_encoding(path)) as file:
        for line, content in enumerate(file, 1):
            if content.strip():
                yield line, _object(path, line, _parse(path, content, line))


def json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """A list of objects, or an object that contains one (`{"data": [...]}`); otherwise one object per line."""
    text = path.read_text(encoding=detect_encoding(path))
    if not text.strip():
        raise DataError(msg("{path} is empty: give a list of objects with a text and a label.", path=path))
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        yield from json_lines(path)
        return
    if isinstance(content, dict):
        content = _rows_in_object(content)
    if not isinstance(content, list):
        raise DataError(msg("{path} must contain a list of objects with a text and a label.", path=path))
    for number, item in enumerate(squad_rows(content) if is_squad(content) else content, 1):
        yield number, _object(path, number, item)


def is_one_object(path: Path) -> bool:
    """Whether a file is a JSON object with all rows in it, which the datasets library does not read."""
    if path.suffix.lower() != ".json":
        return False
    try:
        return isinstance(json.loads(path.read_text(encoding=detect_encoding(path))), dict)
    except (ValueError, RecursionError):
        return False


def _rows_in_object(content: dict[str, Any]) -> list[Any]:
    """The rows of an object in any of the usual layouts, or the object as a single row."""
    if set(content) == {"columns", "index", "data"} and all(isinstance(row, list) for row in content["data"]):
        return [dict(zip(content["columns"], row, strict=False)) for row in content["data"]]  # orient="split"
    if content and all(isinstance(value, dict) for value in content.values()):
        return _rows_of_frame(content)
    lists = {name: value for name, value in content.items() if isinstance(value, list)}
    if len(lists) > 1 and len({len(value) for value in lists.values()}) == 1:
        return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]
    return next(iter(lists.values())) if len(lists) == 1 else [content]


def _rows_of_frame(content: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per value (orient="index"), or a column per value, each from index to cell (pandas' default)."""
    inner = {key: None for value in content.values() for key in value}
    if len(content) > len(inner) or all(key.isdigit() for key in content):
        return list(content.values())
    return [{name: cells[key] for name, cells in content.items() if key in cells} for key in inner]


def _parse(path: Path, content: str, line: int) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        not_json = msg(
            "{path} line {line} is not JSON ({reason}): correct or remove it.", path=path, line=line, reason=str(error)
        )
        raise DataError(not_json) from None


def _object(path: Path, number: int, item: Any) -> dict[str, Any]:
    if isinstance(item, str):
        return {"text": item}
    if not isinstance(item, dict):
        raise DataError(
            msg("{path} entry {number} is not a JSON object: correct or remove it.", path=path, number=number)
        )
    return item
