"""CPU load: whether the cores are idle, and how long a call takes on them."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

_MAX_RELATIVE_TIME = 0.95  # upper limit for the time on all cores relative to one core, if they are idle
_CHECKS = 3  # of some milliseconds each: a short burst of other work does not count
_MAX_SECONDS = 0.03
_MIN_SECONDS = 0.004  # for one measurement
_MAX_OTHERS = 0.3  # CPU share of other processes during the checks, each of which lasts only a few kernel ticks
_PROC_STAT, _TICKS_PER_SECOND = Path("/proc/stat"), 100  # USER_HZ, whatever the kernel's own tick rate
_IDLE, _IOWAIT, _STEAL, _FIELDS = 3, 4, 7, 8  # columns of its first line; later ones are included in the first


def is_idle() -> bool:
    """Whether all cores are idle. With another process on one of them, threads wait for each other at every call."""
    if torch.get_num_threads() == 1:
        return True
    load = CpuShare()
    speedups = [_threads_help() for _ in range(_CHECKS)]
    return any(speedups) and load.others < _MAX_OTHERS  # among many processes, two threads get a larger share than one


def _threads_help() -> bool:
    x = torch.linspace(-3, 3, 1 << 19)  # not random: the caller's random numbers stay the same
    all_cores = _median(lambda: torch.nn.functional.gelu(x))
    with one_core():
        return all_cores < _MAX_RELATIVE_TIME * _median(lambda: torch.nn.functional.gelu(x))


class CpuShare:
    """CPU time used by others since this object was created; 0 where the system does not report it."""

    def __init__(self) -> None:
        self._before, self._ours = _counters(), time.process_time()

    @property
    def steal(self) -> float:
        """The share of CPU time that a virtual machine's host gave to others."""
        return self._share(lambda elapsed, _: elapsed[_STEAL])

    @property
    def others(self) -> float:
        """That share, plus the share of other processes on this machine."""
        return self._share(lambda elapsed, ours: sum(elapsed) - elapsed[_IDLE] - elapsed[_IOWAIT] - ours)

    def _share(self, part: Callable[[list[int], float], float]) -> float:
        elapsed = [now - before for now, before in zip(_counters(), self._before, strict=True)]
        ours = (time.process_time() - self._ours) * _TICKS_PER_SECOND
        return max(0.0, part(elapsed, ours) / sum(elapsed)) if sum(elapsed) else 0.0


def _counters() -> list[int]:
    try:
        fields = _PROC_STAT.read_text("utf-8").splitlines()[0].split()
        return [int(field) for field in fields[1 : 1 + _FIELDS]]
    except (OSError, IndexError, ValueError):
        return [0] * _FIELDS


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Run torch on one thread inside."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _median(run: Callable[[], Any]) -> float:
    run()
    return statistics.median(time_runs(run, 15))


def best_time(run: Callable[[], Any]) -> float:
    """The fastest of a few runs after a warm-up run."""
    run()
    return min(time_runs(run, 2))


def time_runs(run: Callable[[], Any], count: int) -> list[float]:
    """Seconds of several runs: `count` of them, fewer if they are long, more if they are short."""
    seconds: list[float] = []
    while sum(seconds) < _MIN_SECONDS or (len(seconds) < count and sum(seconds) < _MAX_SECONDS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return seconds


def minus_overhead(seconds: float, call_overhead: float) -> float:
    """The seconds without the overhead of the call."""
    return max(seconds - call_overhead, seconds / 4)
