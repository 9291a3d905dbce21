"""Whether the cores are free, and how long a call takes on them."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

_FASTER = 0.95  # of one core's time, that all of them take if they are free
_LOOKS = 3  # at the cores, each of some milliseconds: a moment's work of others says nothing
_TOO_LONG = 0.03
_LONG_ENOUGH = 0.004  # seconds for one figure
_TOO_MANY = 0.3  # of the cores' time in others' hands during these looks, each a few of the system's ticks
_COUNTERS, _TICKS = Path("/proc/stat"), 100  # of every second, whatever the kernel's own
_IDLE, _WAITING, _STOLEN, _COUNTED = 3, 4, 7, 8  # in its first line; what follows is counted twice


def is_idle() -> bool:
    """Whether all cores are free. With another process on one of them threads wait for each other at every call."""
    if torch.get_num_threads() == 1:
        return True
    watch = CpuShare()
    faster = [_all_beat_one() for _ in range(_LOOKS)]
    return any(faster) and watch.others < _TOO_MANY  # of many processes two threads get a larger share than one


def _all_beat_one() -> bool:
    x = torch.randn(1 << 19)
    together = _usual(lambda: torch.nn.functional.gelu(x))
    with one_core():
        return together < _FASTER * _usual(lambda: torch.nn.functional.gelu(x))


class CpuShare:
    """Whom the cores have worked for since it began; for nobody else where the system does not say."""

    def __init__(self) -> None:
        self._before, self._ours = _counters(), time.process_time()

    @property
    def stolen(self) -> float:
        """The share of the cores' time that a virtual machine's host gave to others."""
        return self._share(lambda passed, _: passed[_STOLEN])

    @property
    def others(self) -> float:
        """That share, and what processes other than this one had."""
        return self._share(lambda passed, ours: sum(passed) - passed[_IDLE] - passed[_WAITING] - ours)

    def _share(self, part: Callable[[list[int], float], float]) -> float:
        passed = [now - before for now, before in zip(_counters(), self._before, strict=True)]
        ours = (time.process_time() - self._ours) * _TICKS
        return max(0.0, part(passed, ours) / sum(passed)) if sum(passed) else 0.0


def _counters() -> list[int]:
    try:
        specs = _COUNTERS.read_text("utf-8").splitlines()[0].split()
        return [int(spec) for spec in specs[1 : 1 + _COUNTED]]
    except (OSError, IndexError, ValueError):
        return [0] * _COUNTED


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _usual(run: Callable[[], Any]) -> float:
    run()
    return statistics.median(times(run, 15))


def quickest(run: Callable[[], Any]) -> float:
    """The fastest of a few runs after one to get warm."""
    run()
    return min(times(run, 2))


def times(run: Callable[[], Any], count: int) -> list[float]:
    taken: list[float] = []
    while sum(taken) < _LONG_ENOUGH or (len(taken) < count and sum(taken) < _TOO_LONG):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return taken


def net(seconds: float, call: float) -> float:
    """Without what calling takes."""
    return max(seconds - call, seconds / 4)
