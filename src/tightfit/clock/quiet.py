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
_COUNTERS = Path("/proc/stat")
_STOLEN, _COUNTED = 7, 8  # in its first line; what follows is counted twice


def is_quiet() -> bool:
    """Whether all cores are free. With another process on one of them threads wait for each other at every call."""
    return torch.get_num_threads() == 1 or any(_all_beat_one() for _ in range(_LOOKS))


def _all_beat_one() -> bool:
    x = torch.randn(1 << 19)
    together = _usual(lambda: torch.nn.functional.gelu(x))
    with one_core():
        return together < _FASTER * _usual(lambda: torch.nn.functional.gelu(x))


class Stolen:
    """What share of the cores' time a virtual machine's host gave to others since; 0 where the system does not say."""

    def __init__(self) -> None:
        self._before = _counters()

    @property
    def share(self) -> float:
        passed = [now - before for now, before in zip(_counters(), self._before, strict=True)]
        return passed[_STOLEN] / sum(passed) if sum(passed) else 0.0


def _counters() -> list[int]:
    try:
        words = _COUNTERS.read_text("utf-8").splitlines()[0].split()
        return [int(word) for word in words[1 : 1 + _COUNTED]]
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
