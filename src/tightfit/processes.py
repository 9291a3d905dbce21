"""Run functions in other processes, forked or newly started."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

from tightfit.errors import RunFailed

T = TypeVar("T")
Item = TypeVar("Item")
_POLL_SECONDS = 0.5
_MAX_FORKS = 4


def usable_cpus() -> int:
    """The number of CPUs this process may use; 1 where it cannot fork."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


def use_one_thread() -> None:
    """Call first in a forked process: torch's threads do not survive a fork, and it would wait for them forever."""
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(1)


# Forked processes
#
# A simulation keeps tens of megabytes of traces, which would count towards the memory of the training run after it. A
# forked process inherits every loaded library but torch's threads, which a simulation does not use. Where forking is
# not possible, the work is done in this process.


def run_in_fork(work: Callable[..., T], *args: Any) -> T:
    """Call `work` in a forked process; its result is returned and its exception raised here."""
    if sys.platform != "linux" or _cuda_is_initialized():
        return work(*args)
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_child_main, args=(sender, work, args))
    try:
        process.start()
        sender.close()
        outcome: Any = receiver.recv()
    except EOFError:
        raise RunFailed("The memory estimate was killed, probably by the OOM killer: free some memory.") from None
    finally:
        if process.pid is not None:
            process.terminate()  # it has sent its result, or this process was interrupted
            process.join()
    if isinstance(outcome, BaseException):
        raise outcome
    result: T = outcome
    return result


def _cuda_is_initialized() -> bool:
    """CUDA cannot be used in a process forked after its initialization."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()


def _child_main(pipe: Connection, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
    use_one_thread()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both processes; the parent reports it
    try:
        pipe.send(work(*args))
    except Exception as error:
        pipe.send(error)


class Prefetch(Generic[T]):
    """Work that was started in a forked process, to be collected later."""

    def __init__(self, work: Callable[..., T], *args: Any) -> None:
        self._receiver, sender = multiprocessing.Pipe(duplex=False)
        fork = multiprocessing.get_context("fork")
        fork.Process(target=_silent_child_main, args=(sender, work, args), daemon=True).start()
        sender.close()

    def result(self) -> T | None:
        """Wait for the result; None if the work failed or its process died."""
        try:
            with self._receiver:
                result: T | None = self._receiver.recv()
        except (EOFError, OSError):
            return None
        return result

    def cancel(self) -> None:
        """Do not wait; the process ends when it fails to send its result."""
        self._receiver.close()


def _silent_child_main(pipe: Connection, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """stdout and stderr belong to the parent, which does the work again if it failed here and reports the error."""
    with Path(os.devnull).open("w") as devnull:
        for stream in (1, 2):
            os.dup2(devnull.fileno(), stream)
    try:
        pipe.send(work(*args))
    except Exception:
        pipe.send(None)


_inherited: Callable[[Any], Any] | None = None


def map_in_forks(work: Callable[[Item], T], items: Sequence[Item]) -> Iterator[tuple[Item, T]]:
    """Yield every item with its result, computed in parallel; stops early if a process dies.

    The processes inherit `work` and everything it refers to; only items and results are pickled.
    """
    global _inherited
    _inherited = work
    try:
        fork = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(min(usable_cpus(), _MAX_FORKS), fork, initializer=use_one_thread) as pool:
            yield from zip(items, pool.map(_call_inherited, items), strict=True)
    except (BrokenProcessPool, OSError):
        return
    finally:
        _inherited = None


def _call_inherited(item: Any) -> Any:
    assert _inherited is not None
    return _inherited(item)


# Fresh processes, whose memory holds nothing of an earlier task


@dataclass(frozen=True)
class WorkerResult:
    """What a worker printed, or its last line on stderr if it failed."""

    found: Any
    message: str
    exit_code: int


def run_worker(
    module: str, task: dict[str, Any], on_tick: Callable[[float], None] = lambda seconds: None
) -> WorkerResult:
    """Run `python -m module` with the task as JSON on stdin; `on_tick` is called regularly with the elapsed seconds.

    stdout and stderr are files, as a pipe that is not read could fill up. Ctrl-C reaches only this process, which kills
    the worker: it has no partial result to keep.
    """
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        command = [sys.executable, "-m", module]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=stdout, stderr=stderr, start_new_session=True)
        try:
            _send_task(process, task)
            _poll(process, on_tick)
        finally:
            process.kill()
            process.wait()
        return _worker_result(process.returncode, stdout, stderr)


def _send_task(process: subprocess.Popen[bytes], task: dict[str, Any]) -> None:
    assert process.stdin
    process.stdin.write(json.dumps(task).encode())
    process.stdin.close()


def _poll(process: subprocess.Popen[bytes], on_tick: Callable[[float], None]) -> None:
    start = time.monotonic()
    while process.poll() is None:
        time.sleep(_POLL_SECONDS)
        on_tick(time.monotonic() - start)


def _worker_result(code: int, stdout: IO[bytes], stderr: IO[bytes]) -> WorkerResult:
    if code == 0:
        return WorkerResult(json.loads(_lines(stdout)[-1]), "", 0)
    if code < 0:
        return WorkerResult(None, f"killed by signal {-code}, probably out of memory", 1)
    return WorkerResult(None, (_lines(stderr) or ["failed without a message"])[-1].removeprefix("tightfit: "), code)


def _lines(file: IO[bytes]) -> list[str]:
    file.seek(0)
    return file.read().decode("utf-8", errors="replace").strip().splitlines()
