"""The explain command: reads the pasted message and the script's settings."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from tightfit.cli.startup import command_terminal
from tightfit.errors import BadInput
from tightfit.explain import Explanation, ScriptArgs, explain
from tightfit.messages import msg


def run_explanation(
    message: Path | None, args: Path | None, model: str | None, device: str | None, *, quiet: bool
) -> Explanation:
    """Explain a message, settings, or both."""
    settings = ScriptArgs.read(args) if args else ScriptArgs() if model else None
    settings = replace(settings, model=model) if settings and model else settings
    with command_terminal(quiet=quiet).status(msg("Simulating")):
        return explain(_message(message), settings, device)


def _message(file: Path | None) -> str:
    """The message from a file or a pipe; empty if standard input is a terminal."""
    if file is not None and str(file) != "-":
        try:
            return file.read_text("utf-8", errors="replace")
        except FileNotFoundError:
            missing = msg("There is no file '{file}': pipe the message in, or check the name.", file=file)
            raise BadInput(missing) from None
    return "" if file is None and sys.stdin.isatty() else sys.stdin.read()
