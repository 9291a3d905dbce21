"""Start of a command: its terminal, and characters that the console cannot encode."""

from __future__ import annotations

import codecs
import sys
from io import TextIOWrapper
from typing import TYPE_CHECKING

from tightfit.models import silence_transformers

if TYPE_CHECKING:
    from tightfit.report.progress import Terminal


def command_terminal(*, quiet: bool) -> Terminal:
    """The terminal of a command; in its process the messages and progress bars of libraries would break ours."""
    from tightfit.report.progress import Terminal

    silence_transformers()
    return Terminal(quiet=quiet)


_PLAIN = {"…": "...", "·": "-", "–": "-", "×": "x", "←": "<-", "→": "->", "█": "#", "░": ".", "≤": "<=", "≥": ">="}


def replace_unencodable() -> None:
    """Write characters that the console or file cannot encode (cp936, cp1252, ASCII) as similar ones, or as `?`."""
    codecs.register_error("tightfit", _similar)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="tightfit")


def _similar(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    unknown = error.object[error.start : error.end]
    return "".join(_PLAIN.get(character, "?") for character in unknown), error.end
