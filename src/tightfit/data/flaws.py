"""Flaws: what can be wrong with a row, what is done about it, and how it is said: counted and with its line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntFlag
from typing import Any

import numpy as np

LONGEST = 100_000  # characters; a model reads the first few hundred tokens
_LINES_NAMED = 5


class Flaw(IntFlag):
    """What is wrong with a row; it may be several things."""

    NONE = 0
    NO_TEXT = 1
    TEXT_OF_NO_USE = 2
    NO_LABEL = 4
    LABEL_OF_NO_USE = 8
    CONTROL_CHARACTERS = 16
    HALF_CHARACTERS = 32
    VERY_LONG = 64


DROPPED = Flaw.NO_TEXT | Flaw.TEXT_OF_NO_USE | Flaw.NO_LABEL | Flaw.LABEL_OF_NO_USE
WITHOUT_TEXT = Flaw.NO_TEXT | Flaw.TEXT_OF_NO_USE
_SAID = {
    Flaw.NO_TEXT: "without text dropped",
    Flaw.TEXT_OF_NO_USE: "whose text is a list, an object or bytes dropped",
    Flaw.NO_LABEL: "without a label dropped",
    Flaw.LABEL_OF_NO_USE: "whose label is a list, an object or bytes dropped",
    Flaw.CONTROL_CHARACTERS: "with control characters, which are read as spaces",
    Flaw.HALF_CHARACTERS: "with half a character (a lone surrogate), which is read as '?'",
    Flaw.VERY_LONG: f"of more than {LONGEST:,} characters, of which the first are read",
}


def clean(value: Any) -> tuple[str, Flaw]:
    """A cell as text that every later stage can take, and what was wrong with it."""
    if isinstance(value, (list, tuple, dict, bytes)):
        return "", Flaw.TEXT_OF_NO_USE
    text, flaws = "" if value is None or value != value else str(value).strip(), Flaw.NONE  # NaN is not even itself
    if len(text) > LONGEST:
        text, flaws = text[:LONGEST], flaws | Flaw.VERY_LONG
    if not text.isprintable():
        text, found = _printable(text)
        flaws |= found
    return text, flaws if text else flaws | Flaw.NO_TEXT


def _printable(text: str) -> tuple[str, Flaw]:
    """Line breaks and tabs are no flaw; what no text holds becomes a space, half a character a question mark."""
    flaws = Flaw.NONE
    if _HALF.search(text):
        text, flaws = text.encode("utf-8", "replace").decode("utf-8"), Flaw.HALF_CHARACTERS
    if text.translate(_CONTROL) != text:
        text, flaws = text.translate(_CONTROL).strip(), flaws | Flaw.CONTROL_CHARACTERS
    return text, flaws


_HALF = re.compile("[\ud800-\udfff]")
_CONTROL = dict.fromkeys((*range(9), 11, 12, *range(14, 32), 127), " ")


def notes_on(name: str, flaws: np.ndarray[Any, np.dtype[np.int64]], lines: Sequence[int]) -> tuple[str, ...]:
    """A line for the user on each flaw there is."""
    said = []
    for flaw, what in _SAID.items():
        where = np.asarray(lines)[(flaws & int(flaw)) != 0]
        if len(where):
            said.append(f"{name}: {len(where):,} row{'s' if len(where) > 1 else ''} {what} ({named(where.tolist())})")
    return tuple(said)


def named(lines: Sequence[int]) -> str:
    """The lines, or the first of them where there are many."""
    shown = ", ".join(str(line) for line in lines[:_LINES_NAMED])
    more = f" and {len(lines) - _LINES_NAMED:,} more" if len(lines) > _LINES_NAMED else ""
    return f"line{'s' if len(lines) > 1 else ''} {shown}{more}"
