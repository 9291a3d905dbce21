"""CoNLL files: a token and its tags per line, a blank line after each sentence; a row is a sentence."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tightfit.data.encoding import detect_encoding
from tightfit.errors import DataError
from tightfit.messages import msg

EXTENSIONS = (".conll", ".bio", ".iob", ".iob2")
TOKENS, TAGS = "tokens", "tags"
"""The names of the first and the last column; those between are numbered from 2."""
_SAMPLED_LINES = 1000
_MOSTLY = 0.9
_LONGEST_TOKEN = 20  # characters, on average
_TAG = re.compile(r"(O|[BIESLUM]-\S+)$")

Line = tuple[int, list[str]]
"""The line number, and the fields; none on a blank line."""


def is_conll(path: Path) -> bool:
    """Whether a file has an extension of CoNLL files, or is a text file that looks like one.

    Most of its lines have as many fields as the others, at least two: the last is a tag such as `B-PER`, or there are
    blank lines between groups of lines and the first is as short as a token.
    """
    if path.suffix.lower() in EXTENSIONS:
        return True
    lines = [fields for _, fields in itertools.islice(_lines(path), _SAMPLED_LINES)]
    filled = [fields for fields in lines if fields]
    count = _usual_count(filled)
    rows = [fields for fields in filled if len(fields) == count]
    if count < 2 or len(rows) < _MOSTLY * len(filled):
        return False
    tags = [fields[-1] for fields in rows if _TAG.match(fields[-1])]
    if len(tags) >= _MOSTLY * len(rows):
        return any(tag != "O" for tag in tags)
    groups = sum(1 for blank, _ in itertools.groupby(lines, key=lambda fields: not fields) if not blank)
    return 2 <= groups <= len(rows) / 3 and sum(len(fields[0]) for fields in rows) <= _LONGEST_TOKEN * len(rows)


def conll_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """A row per sentence, with the line of its first token and a list per column."""
    count = _usual_count([fields for _, fields in itertools.islice(_lines(path), _SAMPLED_LINES) if fields])
    names = [TOKENS, *map(str, range(2, count)), TAGS]
    for blank, lines in itertools.groupby(_lines(path), key=lambda line: not line[1]):
        tokens = [] if blank else [line for line in lines if not _is_comment(line[1], count)]
        for number, fields in tokens:
            if len(fields) != count:
                raise DataError(
                    msg(
                        "{path} line {line} has {found} fields where other lines have {count}: write a token and its "
                        "tags on each line, and a blank line after each sentence.",
                        path=path,
                        line=number,
                        found=len(fields),
                        count=count,
                    )
                )
        if tokens:
            columns = zip(*(fields for _, fields in tokens), strict=True)
            yield tokens[0][0], {name: list(column) for name, column in zip(names, columns, strict=True)}


def _usual_count(lines: list[list[str]]) -> int:
    """How many fields most of the lines have."""
    return Counter(map(len, lines)).most_common(1)[0][0] if lines else 0


def _is_comment(fields: list[str], count: int) -> bool:
    return fields[0] == "-DOCSTART-" or (fields[0].startswith("#") and len(fields) != count)


def _lines(path: Path) -> Iterator[Line]:
    """The fields of each line, apart by tabs if there is one, else by spaces; a token may be another kind of space."""
    with path.open(encoding=detect_encoding(path)) as file:
        for number, content in enumerate(file, 1):
            line = content.rstrip(" \t\r\n")
            yield number, line.split("\t") if "\t" in line else re.split(" +", line.lstrip(" ")) if line else []
