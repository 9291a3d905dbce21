"""Elsewhere: a task done in a fresh process, which has nothing of an earlier one in its memory."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

_GLANCE = 0.5  # seconds between two looks at a process


@dataclass(frozen=True)
class Answer:
    """What a process found, or the last thing it said."""

    found: Any
    sentence: str
    exit_code: int


def ask(task: dict[str, Any], glance: Callable[[float], None] = lambda seconds: None) -> Answer:
    """Have a task done; now and then `glance` hears for how long it has been on.

    The process speaks to files: a pipe that nobody reads while it works could fill up. Ctrl-C reaches only this
    process, which ends the other: it has nothing half done that is worth keeping.
    """
    with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as said:
        command = [sys.executable, "-m", "tightfit.ladders.worker"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=printed, stderr=said, start_new_session=True)
        try:
            _give(process, task)
            _watch(process, glance)
        finally:
            process.kill()
            process.wait()
        return _answer(process.returncode, printed, said)


def _give(process: subprocess.Popen[bytes], task: dict[str, Any]) -> None:
    assert process.stdin
    process.stdin.write(json.dumps(task).encode())
    process.stdin.close()


def _watch(process: subprocess.Popen[bytes], glance: Callable[[float], None]) -> None:
    start = time.monotonic()
    while process.poll() is None:
        time.sleep(_GLANCE)
        glance(time.monotonic() - start)


def _answer(code: int, printed: IO[bytes], said: IO[bytes]) -> Answer:
    if code == 0:
        return Answer(json.loads(_lines(printed)[-1]), "", 0)
    if code < 0:
        return Answer(None, f"ended by signal {-code}, perhaps for want of memory", 1)
    return Answer(None, (_lines(said) or ["it ended without a word"])[-1].removeprefix("tightfit: "), code)


def _lines(file: IO[bytes]) -> list[str]:
    file.seek(0)
    return file.read().decode("utf-8", errors="replace").strip().splitlines()
