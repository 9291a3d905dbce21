"""fast_exit: faster than Python's own exit, with the same exit code, output and atexit handlers."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import atexit, sys, threading, time
from tightfit.cli.exit import fast_exit

class Probe:
    def __del__(self):
        print("destroyed")

probe = Probe()
atexit.register(lambda: print("exit function"))
try:
    {code}
finally:
    fast_exit()
"""


def run_program(code: str) -> tuple[int, list[str], str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(code=code)], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize(
    ("code", "status"),
    [("print('output')", 0), ("print('output'); sys.exit(2)", 2), ("print('output'); sys.exit()", 0)],
)
def test_output_and_exit_functions_are_kept_and_objects_are_not_destroyed(code: str, status: int) -> None:
    assert run_program(code) == (status, ["output", "exit function"], "")


def test_an_uncaught_error_exits_normally_with_a_traceback() -> None:
    status, lines, err = run_program("raise KeyError('a mistake')")
    assert status == 1
    assert lines == ["exit function", "destroyed"]
    assert "KeyError: 'a mistake'" in err


def test_running_threads_are_joined() -> None:
    status, lines, _ = run_program("threading.Thread(target=lambda: (time.sleep(1), print('joined'))).start()")
    assert status == 0
    assert "joined" in lines


def test_a_closed_pipe_gives_an_error_status() -> None:
    program = PROGRAM.format(code="print('output')")
    running = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert running.stdout is not None
    running.stdout.close()
    assert running.wait(60) != 0
