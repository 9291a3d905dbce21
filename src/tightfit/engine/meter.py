"""Meter: what memory really did, as the peak of each moment of a training.

On a CPU it is the resident memory of the whole process, on CUDA what torch has reserved from the card. Every
instant belongs to one moment: a nested moment interrupts the outer one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from tightfit.device import Device
from tightfit.system import status

OTHER = "between"


class Gauge(Protocol):
    """Something that remembers the most memory in use since it was last asked."""

    def now(self) -> int:
        """Bytes in use."""
        ...

    def pop_peak(self) -> int:
        """The most bytes in use since the last call, and start again."""
        ...


class Meter:
    """Collects the peak of every moment."""

    def __init__(self, gauge: Gauge) -> None:
        self.gauge = gauge
        self.phases: dict[str, int] = {}
        self.allocated: dict[str, int] = {}
        """On a card: the tensors' share."""
        self._current = "load"
        gauge.pop_peak()

    @property
    def peak(self) -> int:
        """The most bytes in use so far."""
        self._record()
        return max(self.phases.values())

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Everything inside belongs to this moment."""
        outer = self._enter(name)
        try:
            yield
        finally:
            self._enter(outer)

    @contextlib.contextmanager
    def left_out(self) -> Iterator[None]:
        """What is taken and given back inside belongs to no moment."""
        self._record()
        try:
            yield
        finally:
            self.gauge.pop_peak()

    def begin(self, name: str) -> None:
        """This moment lasts until the next one begins."""
        self._enter(name)

    def _enter(self, name: str) -> str:
        self._record()
        before, self._current = self._current, name
        return before

    def _record(self) -> None:
        allocated = self.gauge.allocated_peak() if isinstance(self.gauge, CudaGauge) else None
        peak = self.gauge.pop_peak()
        self.phases[self._current] = max(peak, self.phases.get(self._current, 0))
        if allocated is not None:
            self.allocated[self._current] = max(allocated, self.allocated.get(self._current, 0))


def meter_for(device: Device) -> Meter:
    """The most exact meter there is for a device."""
    return Meter(_gauge(device))


def _gauge(device: Device) -> Gauge:
    if device.kind == "cuda":
        return CudaGauge(device.name)
    try:
        return ResidentGauge()
    except OSError:
        return SampledGauge()


def resident_bytes() -> int:
    """Resident memory of this process now. A meter that is running goes on: its high-water mark is not reset."""
    try:
        return status("VmRSS")
    except OSError:
        import psutil

        return int(psutil.Process().memory_info().rss)


class ResidentGauge:
    """Resident memory of this process on Linux: the kernel's own high-water mark, which can be set back.

    There is one mark per process, so a second gauge resets what the first has seen.
    """

    def __init__(self) -> None:
        self._reset = Path("/proc/self/clear_refs")
        self.pop_peak()

    def now(self) -> int:
        return status("VmRSS")

    def pop_peak(self) -> int:
        peak = status("VmHWM")
        self._reset.write_text("5")  # 5 sets the high-water mark to what is resident now
        return peak


class SampledGauge:
    """Resident memory of this process anywhere, looked at every few milliseconds by a thread."""

    def __init__(self, every: float = 0.005) -> None:
        import psutil

        self._process = psutil.Process()
        self._every = every
        self._peak = self.now()
        self._lock = threading.Lock()
        self._done = threading.Event()
        threading.Thread(target=self._watch, daemon=True, name="tightfit-meter").start()

    def now(self) -> int:
        return int(self._process.memory_info().rss)

    def pop_peak(self) -> int:
        with self._lock:
            peak, self._peak = max(self._peak, self.now()), self.now()
        return peak

    def stop(self) -> None:
        """End the thread."""
        self._done.set()

    def _watch(self) -> None:
        while not self._done.wait(self._every):
            with self._lock:
                self._peak = max(self._peak, self.now())


class CudaGauge:
    """What torch has reserved from a card."""

    def __init__(self, name: str) -> None:
        self._name = name

    def now(self) -> int:
        import torch

        return torch.cuda.memory_reserved(self._name)

    def allocated_peak(self) -> int:
        """The most that tensors held of it since the last take_peak."""
        import torch

        return torch.cuda.max_memory_allocated(self._name)

    def pop_peak(self) -> int:
        import torch

        peak = torch.cuda.max_memory_reserved(self._name)
        torch.cuda.reset_peak_memory_stats(self._name)
        return peak
