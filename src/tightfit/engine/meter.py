"""Meter: measured peak memory of each phase of training.

On a CPU it is the resident memory of the whole process, on CUDA the memory that torch has reserved. Every instant
belongs to one phase: a nested phase interrupts the outer one.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from tightfit.device import Device
from tightfit.system.memory import proc_status
from tightfit.system.nvidia import gpu_processes

OTHER = "between"


class MemoryProbe(Protocol):
    """Reads the memory in use and its peak since the last reading."""

    def now(self) -> int:
        """Bytes in use."""
        ...

    def pop_peak(self) -> int:
        """The most bytes in use since the last call; resets the peak."""
        ...


class Meter:
    """Records the peak of every phase."""

    def __init__(self, probe: MemoryProbe) -> None:
        self.probe = probe
        self.phases: dict[str, int] = {}
        self.allocated: dict[str, int] = {}
        """On CUDA: the peak of allocated memory, without what the allocator caches."""
        self.context: int | None = None
        """On CUDA: bytes of this process outside of torch's allocator, once they were measured."""
        self._current = "load"
        probe.pop_peak()

    @property
    def measured(self) -> dict[str, int]:
        """The peak of every phase so far."""
        self._record()
        return dict(self.phases)

    @property
    def peak(self) -> int:
        """The most bytes in use so far."""
        return max(self.measured.values())

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Attribute everything inside to this phase."""
        outer = self._enter(name)
        try:
            yield
        finally:
            self._enter(outer)

    @contextlib.contextmanager
    def excluded(self) -> Iterator[None]:
        """Attribute memory that is allocated and freed inside to no phase."""
        self._record()
        try:
            yield
        finally:
            self.probe.pop_peak()

    def begin(self, name: str) -> None:
        """Start a phase that lasts until the next one starts."""
        self._enter(name)

    def _enter(self, name: str) -> str:
        self._record()
        before, self._current = self._current, name
        return before

    def _record(self) -> None:
        allocated = self.probe.allocated_peak() if isinstance(self.probe, CudaProbe) else None
        peak = self.probe.pop_peak()
        self.phases[self._current] = max(peak, self.phases.get(self._current, 0))
        if allocated is not None:
            self.allocated[self._current] = max(allocated, self.allocated.get(self._current, 0))


def meter_for(device: Device) -> Meter:
    """The most exact meter available for a device."""
    return Meter(_probe(device))


def _probe(device: Device) -> MemoryProbe:
    if device.kind == "cuda":
        return CudaProbe(device.name)
    try:
        return ResidentProbe()
    except OSError:
        return SampledProbe()


def resident_bytes() -> int:
    """Resident memory of this process now; does not reset the high-water mark of a running meter."""
    try:
        return proc_status("VmRSS")
    except OSError:
        import psutil

        return int(psutil.Process().memory_info().rss)


class ResidentProbe:
    """Resident memory of this process on Linux: the kernel's high-water mark, which can be reset.

    There is one mark per process, so a second probe resets the peak of the first.
    """

    def __init__(self) -> None:
        self._reset = Path("/proc/self/clear_refs")
        self.pop_peak()

    def now(self) -> int:
        return proc_status("VmRSS")

    def pop_peak(self) -> int:
        peak = proc_status("VmHWM")
        self._reset.write_text("5")  # 5 sets the high-water mark to what is resident now
        return peak


class SampledProbe:
    """Resident memory of this process on other systems, sampled by a thread every few milliseconds."""

    def __init__(self, every: float = 0.005) -> None:
        import psutil

        self._process = psutil.Process()
        self._peak = self.now()
        self._lock = threading.Lock()
        arguments = weakref.ref(self), every
        threading.Thread(target=_sample_while_used, args=arguments, daemon=True, name="tightfit-meter").start()

    def now(self) -> int:
        return int(self._process.memory_info().rss)

    def pop_peak(self) -> int:
        with self._lock:
            peak, self._peak = max(self._peak, self.now()), self.now()
        return peak

    def sample(self) -> None:
        """Called by the thread."""
        with self._lock:
            self._peak = max(self._peak, self.now())


def _sample_while_used(reference: weakref.ref[SampledProbe], every: float) -> None:
    """The thread ends with the probe."""
    while (probe := reference()) is not None:
        probe.sample()
        del probe
        time.sleep(every)


class CudaProbe:
    """Memory that torch has reserved on a GPU."""

    def __init__(self, name: str) -> None:
        self._name = name

    def now(self) -> int:
        import torch

        return torch.cuda.memory_reserved(self._name)

    def allocated_peak(self) -> int:
        """The most bytes allocated to tensors since the last pop_peak."""
        import torch

        return torch.cuda.max_memory_allocated(self._name)

    def pop_peak(self) -> int:
        import torch

        peak = torch.cuda.max_memory_reserved(self._name)
        torch.cuda.reset_peak_memory_stats(self._name)
        return peak


class Context(NamedTuple):
    """What a process holds on a GPU outside of torch's allocator."""

    size: int
    is_exact: bool
    """Whether the driver lists the process; else it is the most that the context can take."""


def context_in_use(device: Device) -> Context | None:
    """What this process holds there; None if it cannot be told from what other processes hold.

    Memory that is neither free nor torch's belongs to the context and to others. So less of it than was assumed for the
    context is an upper bound, also where the driver lists no processes (Windows, containers).
    """
    import torch

    free, total = torch.cuda.mem_get_info(device.name)
    reserved = torch.cuda.memory_reserved(device.name)
    own = [process.size for process in gpu_processes(device.uuid) if process.pid == os.getpid()]
    if own and own[0] is not None:
        return Context(max(0, own[0] - reserved), is_exact=True)
    outside = total - free - reserved
    return Context(outside, is_exact=False) if outside < device.context_bytes else None
