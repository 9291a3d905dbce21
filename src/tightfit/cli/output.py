"""Output of commands on stdout: text for people, and JSON for scripts."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any

from tightfit.messages import Message, msg

if TYPE_CHECKING:
    from rich.console import Console


def stdout() -> Console:
    """A console on the current sys.stdout, which may have been replaced since import."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)


def print_json(content: dict[str, Any]) -> None:
    """Print one JSON object on one line."""
    write_json(json.dumps(content, ensure_ascii=False) + "\n")


def write_json(text: str) -> None:
    """Write JSON to stdout, with escapes if its encoding lacks a character."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = re.sub(r"[^\x00-\x7f]", lambda found: json.dumps(found[0])[1:-1], text)
    sys.stdout.write(text)


def next_line(command: str) -> Message:
    """The last line of a command: what to type next."""
    return msg("next      {command}", command=command)
