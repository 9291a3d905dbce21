"""Memory estimate: the bytes that training will need, by phase and kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tightfit.data.batching import BatchShape
from tightfit.device import Device
from tightfit.display import Display
from tightfit.messages import Message
from tightfit.simulation.allocator import pinned_peak, reserved_by_phase
from tightfit.simulation.error_margin import PROCESS_NOISE, accuracy_on, expected_range
from tightfit.simulation.libraries import LibraryMemory, library_memory
from tightfit.simulation.scaling import Array
from tightfit.simulation.timeline import KINDS, Span, Timeline
from tightfit.strategies.base import MemoryKind

PHASES = ("load", "features", "forward", "backward", "step", "evaluate", "save", "load-best")


@dataclass(frozen=True, kw_only=True)
class Estimate(Display):
    """The memory that a recipe needs. The peak is the largest phase, not a sum."""

    phases: dict[str, dict[MemoryKind, int]]
    """Bytes of each kind at the peak of each phase."""
    overhead: int
    """Bytes without any tensor: the process and its libraries, or the CUDA context."""
    device: Device
    parameters: int
    trainable_parameters: int
    worst: Message
    """A sentence about the rows that determine the peak."""
    host: int = 0
    """Bytes offloaded to host memory beside a GPU."""
    notes: tuple[Message, ...] = ()
    """Why the process itself is larger than necessary, where it is."""

    @property
    def peak(self) -> int:
        """Bytes at the largest phase, with the overhead."""
        return self.overhead + max(sum(kinds.values()) for kinds in self.phases.values())

    @property
    def phase(self) -> str:
        """The phase of the peak; among equal totals (a GPU's allocator keeps its segments) the one that uses most."""
        totals = {name: sum(kinds.values()) for name, kinds in self.phases.items()}
        return max(self.phases, key=lambda name: (totals[name], -self.phases[name][MemoryKind.ALLOCATOR]))

    @property
    def libraries(self) -> list[LibraryMemory]:
        """On a GPU: what CUDA's libraries take; it is in every phase."""
        return library_memory(self.device)

    @property
    def error_band(self) -> tuple[int, int]:
        """The range in which the peak will be, by the accuracy of measured runs."""
        low, high = accuracy_on(self.device)
        return round(self.peak * low), round(self.peak * high) + PROCESS_NOISE.get(self.device.kind, 0)

    @property
    def expected_range(self) -> Message:
        """The error band in a sentence."""
        return expected_range(self.device, *self.error_band)

    @property
    def fits(self) -> bool | None:
        """Whether the device has enough memory, the error band included; None if its size is unknown."""
        if self.device.total_bytes is None:
            return None
        return self.error_band[1] <= self.device.total_bytes and self.fits_host

    @property
    def fits_host(self) -> bool:
        """Whether the host memory holds what is offloaded; True where its size is unknown (a GPU elsewhere)."""
        return self.device.host_bytes is None or self.host <= self.device.host_bytes

    def to_json(self) -> dict[str, Any]:
        """The estimate as JSON, for scripts."""
        return {
            "peak_bytes": self.peak,
            "phase": self.phase,
            "phases": {name: {kind.value: size for kind, size in kinds.items()} for name, kinds in self.phases.items()},
            "device": self.device.label,
            "device_bytes": self.device.total_bytes,
            "fits": self.fits,
            "overhead_bytes": self.overhead,
            "libraries": [{"name": each.name, "bytes": each.size, "source": each.source} for each in self.libraries],
            "host_bytes": self.host,
            "error_band": list(self.error_band),
            "expected_range": self.expected_range,
            "trainable_parameters": self.trainable_parameters,
            "parameters": self.parameters,
            "worst": self.worst,
            "notes": list(self.notes),
        }


def phases_of(
    timeline: Timeline,
    device: Device,
    shapes: Sequence[BatchShape | None],
    reserved: Mapping[str, int] | None = None,
) -> dict[str, dict[MemoryKind, int]]:
    """Bytes by kind at the peak of every phase; what the allocator reserves beyond that is a kind of its own."""
    sizes, spans = timeline.read(shapes)
    on_device = np.where(timeline.on_host, 0, sizes)
    total, reserved = timeline.total(on_device), reserved or reserved_by_phase(device, timeline, sizes, spans)
    phases: dict[str, dict[MemoryKind, int]] = {}
    for name in PHASES:
        slices = ticks_of(name, spans)
        if not slices:
            continue
        peak_tick = peak_tick_of(total, slices)
        kinds = {kind: int(size) for kind, size in zip(KINDS, timeline.live_at(peak_tick, on_device), strict=True)}
        del kinds[MemoryKind.HOST]
        kinds[MemoryKind.ALLOCATOR] = reserved[name] - int(total[peak_tick])
        phases[name] = kinds
    return phases


def lower_bound_of(timeline: Timeline, shapes: Sequence[BatchShape | None]) -> int:
    """The most live bytes at any time: no allocator reserves less."""
    sizes, spans = timeline.read(shapes)
    total = timeline.total(np.where(timeline.on_host, 0, sizes))
    return max(int(total[span.start : span.end + 1].max()) for span in spans if span.phase in PHASES)


def ticks_of(phase: str, spans: Sequence[Span]) -> list[slice]:
    """The ticks of a phase."""
    return [slice(span.start, span.end + 1) for span in spans if span.phase == phase]


def peak_tick_of(total: Array, slices: Sequence[slice]) -> int:
    """The tick with the most live bytes."""
    return max((part.start + int(total[part].argmax()) for part in slices), key=lambda tick: total[tick])


def host_peak(timeline: Timeline, shapes: Sequence[BatchShape | None]) -> int:
    """The most bytes that are offloaded to host memory at any time."""
    sizes, _ = timeline.read(shapes)
    return pinned_peak(timeline, sizes)
