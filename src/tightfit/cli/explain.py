"""The explain command: reads the pasted message and the script's settings."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from tightfit.activity import SIMULATING
from tightfit.cli.startup import command_terminal
from tightfit.errors import BadInput
from tightfit.explain import Explanation, ScriptArgs, explain
from tightfit.messages import Message, msg


def run_explanation(
    message: Path | None, args: Path | None, model: str | None, device: str | None, *, quiet: bool
) -> Explanation:
    """Explain a message, settings, or both."""
    text = _message(message)
    settings, unread = _settings(args, fail=not text.strip())
    if model:
        settings = replace(settings or ScriptArgs.of({}), model=model)
    with command_terminal(quiet=quiet).status(SIMULATING):
        return explain(text, settings, device, unread)


def _settings(args: Path | None, *, fail: bool) -> tuple[ScriptArgs | None, Message | None]:
    """The settings of the script; if it cannot be read and there is a message to explain, why."""
    if args is None:
        return None, None
    try:
        return ScriptArgs.read(args), None
    except BadInput as error:
        if fail:
            raise
        return None, error.message


def _message(file: Path | None) -> str:
    """The message from a file or a pipe; empty if standard input is a terminal."""
    if file is not None and str(file) != "-":
        try:
            return file.read_text("utf-8", errors="replace")
        except FileNotFoundError:
            missing = msg("There is no file '{file}': pipe the message in, or check the name.", file=file)
            raise BadInput(missing) from None
    return "" if file is None and sys.stdin.isatty() else sys.stdin.read()
