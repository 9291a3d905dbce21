"""Functions that tests call in a worker process, which must be able to import them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path


def kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def print_and_exit() -> None:
    print("a message")  # noqa: T201
    sys.stdout.flush()
    os._exit(7)


def fork_and_sleep(file: Path) -> None:
    """Fork a process that sleeps, and sleep; the file gets the ids of both."""
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    child.start()
    file.with_suffix(".tmp").write_text(f"{os.getpid()} {child.pid}")
    file.with_suffix(".tmp").rename(file)
    time.sleep(600)


def set_up() -> None:
    os.environ["WORKER_WAS_SET_UP"] = "1"
