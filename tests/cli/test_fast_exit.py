"""The end of a program: sooner than Python's own, and nothing is left out."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import atexit, sys, threading, time
from tightfit.cli.startup import leave_at_once

class Last:
    def __del__(self):
        print("taken apart")

last = Last()
atexit.register(lambda: print("called at the end"))
try:
    {what}
finally:
    leave_at_once()
"""


def end_of(what: str) -> tuple[int, list[str], str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(what=what)], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize(
    ("what", "code"), [("print('said')", 0), ("print('said'); sys.exit(2)", 2), ("print('said'); sys.exit()", 0)]
)
def test_what_was_said_and_what_is_due_at_the_end_is_there_and_the_rest_is_left(what: str, code: int) -> None:
    assert end_of(what) == (code, ["said", "called at the end"], "")


def test_an_error_that_nobody_caught_is_told_as_ever() -> None:
    code, lines, told = end_of("raise KeyError('a mistake')")
    assert code == 1
    assert lines == ["called at the end", "taken apart"]
    assert "KeyError: 'a mistake'" in told


def test_a_thread_that_works_is_waited_for() -> None:
    code, lines, _ = end_of("threading.Thread(target=lambda: (time.sleep(1), print('worked'))).start()")
    assert code == 0
    assert "worked" in lines


def test_a_reader_who_has_gone_is_no_plain_end() -> None:
    program = PROGRAM.format(what="print('said')")
    running = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert running.stdout is not None
    running.stdout.close()
    assert running.wait(60) != 0
