"""Cores: how many processes of ours can work at the same time, and what a forked one may use."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import IO, Any, TypeVar

from tightfit.errors import RunFailed


def usable_cpus() -> int:
    """How many can be used; one where a process cannot fork."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


def use_one_thread() -> None:
    """First of all in a forked process: torch's threads have stayed behind, and it would wait for them for ever."""
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(1)


# Elsewhere: work done in a process of its own, so that it leaves nothing in the memory of this one.
#
# A rehearsal keeps tens of megabytes of what it learnt, which would count against the training after it. A forked
# process inherits all that is loaded but torch's threads, and a rehearsal does without. Where there is no cheap fork it is done
# here.


T = TypeVar("T")


def run_in_fork(work: Callable[..., T], *given: Any) -> T:
    """What the work returns, or raises."""
    if sys.platform != "linux" or _cuda_is_initialized():
        return work(*given)
    here, there = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_answer, args=(there, work, given))
    try:
        process.start()
        there.close()
        answer: Any = here.recv()
    except EOFError:
        raise RunFailed("The forecast was ended from outside, perhaps for want of memory: free some.") from None
    finally:
        if process.pid is not None:
            process.terminate()  # it has answered, or nobody waits for its answer any more
            process.join()
    if isinstance(answer, BaseException):
        raise answer
    found: T = answer
    return found


def _cuda_is_initialized() -> bool:
    """Its driver does not outlive a fork."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()


def _answer(pipe: Connection, work: Callable[..., Any], given: tuple[Any, ...]) -> None:
    use_one_thread()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both, and one sentence is enough
    try:
        pipe.send(work(*given))
    except Exception as error:
        pipe.send(error)


# Elsewhere: a task done in a fresh process, which has nothing of an earlier one in its memory.


_GLANCE = 0.5  # seconds between two looks at a process


@dataclass(frozen=True)
class WorkerResult:
    """What a process found, or the last thing it said."""

    found: Any
    sentence: str
    exit_code: int


def run_worker(
    module: str, task: dict[str, Any], on_tick: Callable[[float], None] = lambda seconds: None
) -> WorkerResult:
    """Have a task done; now and then `glance` hears for how long it has been on.

    The process speaks to files: a pipe that nobody reads while it works could fill up. Ctrl-C reaches only this
    process, which ends the other: it has nothing half done that is worth keeping.
    """
    with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as said:
        command = [sys.executable, "-m", module]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=printed, stderr=said, start_new_session=True)
        try:
            _give(process, task)
            _watch(process, on_tick)
        finally:
            process.kill()
            process.wait()
        return _worker_result(process.returncode, printed, said)


def _give(process: subprocess.Popen[bytes], task: dict[str, Any]) -> None:
    assert process.stdin
    process.stdin.write(json.dumps(task).encode())
    process.stdin.close()


def _watch(process: subprocess.Popen[bytes], on_tick: Callable[[float], None]) -> None:
    start = time.monotonic()
    while process.poll() is None:
        time.sleep(_GLANCE)
        on_tick(time.monotonic() - start)


def _worker_result(code: int, printed: IO[bytes], said: IO[bytes]) -> WorkerResult:
    if code == 0:
        return WorkerResult(json.loads(_lines(printed)[-1]), "", 0)
    if code < 0:
        return WorkerResult(None, f"ended by signal {-code}, perhaps for want of memory", 1)
    return WorkerResult(None, (_lines(said) or ["it ended without a word"])[-1].removeprefix("tightfit: "), code)


def _lines(file: IO[bytes]) -> list[str]:
    file.seek(0)
    return file.read().decode("utf-8", errors="replace").strip().splitlines()
