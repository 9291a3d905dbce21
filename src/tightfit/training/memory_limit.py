"""Memory limit: running out of memory raises a recoverable error, instead of the process being killed.

On a CPU the OOM killer ends a process that takes the last memory of the machine or the container, without a message.
So the process gets a limit of its own just below that, updated several times a second as other processes allocate and
free memory. Beyond the limit an allocation fails, and the step is repeated with fewer rows. On a GPU torch limits
itself to a fraction of the memory.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from mmap import PAGESIZE

from tightfit.device import Device
from tightfit.messages import Message, msg
from tightfit.system import memory
from tightfit.system.memory import RESERVE, proc_status
from tightfit.units import format_bytes

_POLL_SECONDS = 0.1
_SWAP_WARNING = 256 << 20


@contextlib.contextmanager
def limit_memory(
    device: Device, log: Callable[[Message], None], budget: int | None = None, needed: int | None = None
) -> Iterator[None]:
    """Limit this process to a budget, or to the memory that the machine has, of which it is predicted to need some."""
    if device.kind == "cuda":
        with _cap_cuda(device, budget), _polling(_AllocRetryMonitor(device, log).check):
            yield
    elif sys.platform == "linux":
        limit = _RlimitGuard(budget, needed)
        swap = _SwapMonitor(log)
        try:
            with _polling(limit.update, swap.check):
                yield
        finally:
            limit.release()
    else:
        yield


@contextlib.contextmanager
def _cap_cuda(device: Device, budget: int | None) -> Iterator[None]:
    import torch

    before = torch.cuda.get_per_process_memory_fraction(device.name)
    limit_cuda(device, budget, device.context_bytes)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(before, device.name)


def limit_cuda(device: Device, budget: int | None, context: int) -> None:
    """Limit torch's allocator to a budget without the CUDA context, which is outside of it."""
    import torch

    if budget is not None and device.total_bytes:
        share = max(0, budget - context) / device.total_bytes
        torch.cuda.set_per_process_memory_fraction(min(1.0, share), device.name)


@contextlib.contextmanager
def _polling(*checks: Callable[[], None]) -> Iterator[None]:
    """Run the checks now, then periodically in a thread."""
    done = threading.Event()

    def poll() -> None:
        while not done.wait(_POLL_SECONDS):
            for check in checks:
                # A check can itself hit the limit, of memory or of open files; a later one succeeds again.
                with contextlib.suppress(MemoryError, OSError):
                    check()

    for check in checks:
        check()
    thread = threading.Thread(target=poll, daemon=True, name="tightfit-memory-limit")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class _RlimitGuard:
    """RLIMIT_DATA, the kernel's limit on the private memory of a process, which holds the tensors."""

    def __init__(self, budget: int | None, needed: int | None) -> None:
        import resource

        self._kind, self._resource = resource.RLIMIT_DATA, resource
        self._budget, self._needed = budget, needed
        self._before = resource.getrlimit(self._kind)

    def update(self) -> None:
        limits = [limit for limit in self._before if limit != self._resource.RLIM_INFINITY]
        wanted = max(0, proc_status("VmData", 0) + headroom(self._budget, self._needed))
        self._resource.setrlimit(self._kind, (min([wanted, *limits]), self._before[1]))

    def release(self) -> None:
        self._resource.setrlimit(self._kind, self._before)


class _SwapMonitor:
    """Warns once that the process is being swapped out: nothing fails then, but everything takes ten times as long."""

    def __init__(self, log: Callable[[Message], None]) -> None:
        self._log, self._before, self._warned = log, proc_status("VmSwap", 0), False

    def check(self) -> None:
        swapped = proc_status("VmSwap", 0) - self._before
        if swapped > _SWAP_WARNING and not self._warned:
            self._warned = True
            self._log(
                msg(
                    "{size} of this run are swapped out to disk, which makes it slow: "
                    "give a smaller --budget, or close other programs",
                    size=format_bytes(swapped),
                )
            )


class _AllocRetryMonitor:
    """Warns once that torch's allocator repeatedly empties its cache because the GPU is full."""

    def __init__(self, device: Device, log: Callable[[Message], None]) -> None:
        self._device, self._log, self._warned = device, log, False

    def check(self) -> None:
        import torch

        retries = torch.cuda.memory_stats(self._device.name).get("num_alloc_retries", 0)
        if retries > 10 and not self._warned:
            self._warned = True
            self._log(
                msg(
                    "GPU memory is so full that torch emptied its cache {count} times, which makes the run slow: "
                    "give a smaller --budget",
                    count=retries,
                )
            )


def headroom(budget: int | None = None, needed: int | None = None) -> int:
    """Bytes that this process may still allocate, less a reserve.

    A budget covers the resident memory of the whole process, libraries included, as meter and planner count it. Without
    one, `needed` is what the run is predicted to take at most.
    """
    expected = budget if budget is not None else needed
    limits = [
        memory.available_memory() - RESERVE,
        *(group.headroom - _reserve(group.limit, expected) for group in memory.cgroups()),
    ]
    if budget is not None:
        limits.append(budget - proc_status("VmRSS", 0))
    return min(limits)


def _reserve(container: int, expected: int | None) -> int:
    """In a container as large as the run only the memory beyond the run is reserved: a plan counts on all of it.

    The kernel rounds a limit down to whole pages, so a container of 1.2 GB is slightly smaller than a budget of 1.2 GB.
    """
    if expected is None or expected // PAGESIZE > container // PAGESIZE:
        return RESERVE
    return min(RESERVE, max(0, container - expected))
