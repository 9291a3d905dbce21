"""Elsewhere: a task done in a fresh process, which has nothing of an earlier one in its memory."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import IO, Any

_GLANCE = 0.5  # seconds between two looks at a process


class Worker:
    """A process of its own. Ctrl-C reaches only this one, which has nothing half done to keep and ends the other.

    It speaks to files: a pipe that nobody reads while it works could fill up.
    """

    def __init__(self, task: dict[str, Any]) -> None:
        self.printed, self.said = tempfile.TemporaryFile("w+b"), tempfile.TemporaryFile("w+b")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tightfit.ladders.worker"],
            stdin=subprocess.PIPE,
            stdout=self.printed,
            stderr=self.said,
            start_new_session=True,
        )
        assert self.process.stdin
        self.process.stdin.write(json.dumps(task).encode())
        self.process.stdin.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()
        self.printed.close()
        self.said.close()

    def answer(self, glance: Callable[[float], None] = lambda seconds: None) -> tuple[Any, str]:
        """What it found, or the last thing it said; on the way it is looked at now and then."""
        start = time.monotonic()
        while self.process.poll() is None:
            time.sleep(_GLANCE)
            glance(time.monotonic() - start)
        if self.process.returncode == 0:
            return json.loads(_lines(self.printed)[-1]), ""
        if self.process.returncode < 0:
            return None, f"ended by signal {-self.process.returncode}, perhaps for want of memory"
        return None, (_lines(self.said) or ["it ended without a word"])[-1].removeprefix("tightfit: ")


def _lines(file: IO[bytes]) -> list[str]:
    file.seek(0)
    return file.read().decode("utf-8", errors="replace").strip().splitlines()
