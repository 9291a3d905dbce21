"""Printing: answers go to standard output, for people or as one JSON object."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def stdout() -> Console:
    """Made for each answer: standard output may have changed since."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)


def print_json(content: dict[str, Any]) -> None:
    """One object, one line."""
    sys.stdout.write(json.dumps(content, ensure_ascii=False) + "\n")
