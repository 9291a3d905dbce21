"""Guard: memory runs out as an error that can be recovered from, not as a kill.

On a CPU the kernel kills a process that takes the machine's or the container's last memory, without a word. So the
process is given a limit of its own, a little before that, and the limit is set anew several times a second as others
take memory or give it back. Beyond it an allocation fails, and the step is done again with fewer rows. On a card torch
itself keeps to a share of it.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from mmap import PAGESIZE

from tightfit import system
from tightfit.device import Device
from tightfit.system import status
from tightfit.units import format_bytes

_EVERY = 0.1  # seconds
_RESERVE = 256 << 20  # for what is not this process's data
_MUCH_SWAP = 256 << 20


@contextlib.contextmanager
def limit_memory(device: Device, log: Callable[[str], None], budget: int | None = None) -> Iterator[None]:
    """Keep this process within a budget, or within what the machine has."""
    if device.kind == "cuda":
        with _cap_cuda(device, budget), _polling(_AllocRetryMonitor(device, log).look):
            yield
    elif sys.platform == "linux":
        limit = _Limit(budget)
        swap = _SwapMonitor(log)
        try:
            with _polling(limit.set, swap.look):
                yield
        finally:
            limit.lift()
    else:
        yield


@contextlib.contextmanager
def _cap_cuda(device: Device, budget: int | None) -> Iterator[None]:
    import torch

    if budget is not None and device.memory:
        share = max(0, budget - device.context) / device.memory  # the context is no memory of torch's
        torch.cuda.set_per_process_memory_fraction(min(1.0, share), device.name)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device.name)


@contextlib.contextmanager
def _polling(*looks: Callable[[], None]) -> Iterator[None]:
    """Look at once, then again and again in a thread."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_EVERY):
            for look in looks:
                # At the limit itself, of memory or of open files; the next look finds room again.
                with contextlib.suppress(MemoryError, OSError):
                    look()

    for look in looks:
        look()
    thread = threading.Thread(target=watch, daemon=True, name="tightfit-guard")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class _Limit:
    """The kernel's limit for a process's own data, which is what tensors are."""

    def __init__(self, budget: int | None) -> None:
        import resource

        self._kind, self._resource, self._budget = resource.RLIMIT_DATA, resource, budget
        self._before = resource.getrlimit(self._kind)

    def set(self) -> None:
        room = headroom(self._budget)
        _, hard = self._before
        wanted = max(0, status("VmData", 0) + room)
        soft = wanted if hard == self._resource.RLIM_INFINITY else min(wanted, hard)
        self._resource.setrlimit(self._kind, (soft, hard))

    def lift(self) -> None:
        self._resource.setrlimit(self._kind, self._before)


class _SwapMonitor:
    """Says once that the machine has begun to swap: nothing fails then, everything only takes ten times as long."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._say, self._before, self._said = log, status("VmSwap", 0), False

    def look(self) -> None:
        swapped = status("VmSwap", 0) - self._before
        if swapped > _MUCH_SWAP and not self._said:
            self._said = True
            self._say(f"{format_bytes(swapped)} of this run are swapped out to disk, which makes it slow: use less")


class _AllocRetryMonitor:
    """Says once that torch's allocator empties its cache again and again to make room on a card."""

    def __init__(self, device: Device, log: Callable[[str], None]) -> None:
        self._device, self._say, self._said = device, log, False

    def look(self) -> None:
        import torch

        retries = torch.cuda.memory_stats(self._device.name).get("num_alloc_retries", 0)
        if retries > 10 and not self._said:
            self._said = True
            self._say(f"the card is so full that room was made {retries} times, which makes it slow: use less")


def headroom(budget: int | None = None) -> int:
    """Bytes that this process may still take, less a reserve.

    A budget is the whole process's resident memory, libraries included, as the meter measures it and plans promise it.
    """
    rooms = [system.available() - _RESERVE, *(room - _reserve(size, budget) for size, room in system.container_rooms())]
    if budget is not None:
        rooms.append(budget - status("VmRSS", 0))
    return min(rooms)


def _reserve(container: int, budget: int | None) -> int:
    """A container that is made to measure for a budget has nothing to spare: what it has beyond that is the reserve.

    The kernel cuts a limit down to whole pages, so that a container of 1.2 GB is a little smaller than a budget of it.
    """
    if budget is None or budget // PAGESIZE > container // PAGESIZE:
        return _RESERVE
    return min(_RESERVE, max(0, container - budget))
