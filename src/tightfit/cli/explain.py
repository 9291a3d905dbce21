"""What the command line does to explain: read what was pasted and the script's settings."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from tightfit.errors import BadInput
from tightfit.explain import Explanation, Settings, explain


def run_explanation(
    message: Path | None, args: Path | None, model: str | None, device: str | None, *, quiet: bool
) -> Explanation:
    """Of a message, of settings, or of both."""
    from tightfit.report.progress import Terminal

    settings = Settings.read(args) if args else Settings() if model else None
    settings = replace(settings, model=model) if settings and model else settings
    with Terminal(quiet=quiet).status("Rehearsing"):
        return explain(_message(message), settings, device)


def _message(file: Path | None) -> str:
    """What was pasted or piped; nothing where nobody typed."""
    if file is not None and str(file) != "-":
        try:
            return file.read_text("utf-8", errors="replace")
        except FileNotFoundError:
            raise BadInput(f"There is no file '{file}': paste the message with a pipe, or check the name.") from None
    return "" if file is None and sys.stdin.isatty() else sys.stdin.read()
