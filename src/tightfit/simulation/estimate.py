"""Accuracy: how far measured runs were from their bills, as committed records tell (`make bench-memory`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tightfit.device import Device
from tightfit.display import HTMLDisplay
from tightfit.simulation.allocator import pinned_peak, reserved_over_time
from tightfit.simulation.scaling import BatchShape, Numbers
from tightfit.simulation.timeline import KINDS, Span, Timeline
from tightfit.strategies.base import MemoryKind

FILE = Path(__file__).with_name("accuracy.json")


WANDERS = {"cpu": 24 << 20}
"""Bytes by which a process differs from run to run, whatever it trains."""


def accuracy_on(device: Device) -> tuple[float, float]:
    """Measured over foretold, from the lowest to the highest, the outermost runs left out."""
    bands = _bands()
    low, high = bands.get(device.kind, bands["cuda"])
    return low, high


@cache
def _bands() -> dict[str, list[float]]:
    content: dict[str, list[float]] = json.loads(FILE.read_text("utf-8"))
    return content


# Bill: what a training will take, as bytes by moment and kind.


PHASES = ("load", "features", "forward", "backward", "step", "evaluate", "save", "load-best")


@dataclass(frozen=True, kw_only=True)
class Estimate(HTMLDisplay):
    """The memory cost of a recipe. The peak is the largest moment, not a sum."""

    phases: dict[str, dict[MemoryKind, int]]
    """Bytes of each kind at the moment's highest instant."""
    overhead: int
    """What is there without any tensor: the process and its libraries, or a card's context."""
    device: Device
    parameters: int
    trainable_parameters: int
    worst: str
    """Which rows make it so large."""
    host: int = 0
    """Bytes that wait in the memory around a card."""
    notes: tuple[str, ...] = ()
    """Why the process itself is as large as it is, where it need not be."""

    @property
    def peak(self) -> int:
        """The most bytes at any moment."""
        return self.overhead + max(sum(kinds.values()) for kinds in self.phases.values())

    @property
    def phase(self) -> str:
        """When that is; a card's allocator keeps what it took, so of several the one that uses most."""
        totals = {name: sum(kinds.values()) for name, kinds in self.phases.items()}
        return max(self.phases, key=lambda name: (totals[name], -self.phases[name][MemoryKind.ALLOCATOR]))

    @property
    def error_band(self) -> tuple[int, int]:
        """From the least to the most that measured runs say the peak may be."""

        low, high = accuracy_on(self.device)
        return round(self.peak * low), round(self.peak * high) + WANDERS.get(self.device.kind, 0)

    @property
    def fits(self) -> bool | None:
        """Whether the device has that much, the error band included; None if its size is unknown."""
        if self.device.memory is None:
            return None
        return self.error_band[1] <= self.device.memory and self.fits_host

    @property
    def fits_host(self) -> bool:
        """Whether the machine around a card has what waits there; for a card that is elsewhere that is not known."""
        return self.device.host_memory is None or self.host <= self.device.host_memory

    def to_json(self) -> dict[str, Any]:
        """The bill for scripts."""
        return {
            "peak_bytes": self.peak,
            "phase": self.phase,
            "phases": {name: {kind.value: size for kind, size in kinds.items()} for name, kinds in self.phases.items()},
            "device": self.device.title,
            "device_bytes": self.device.memory,
            "fits": self.fits,
            "overhead_bytes": self.overhead,
            "host_bytes": self.host,
            "error_band": list(self.error_band),
            "trainable_parameters": self.trainable_parameters,
            "parameters": self.parameters,
            "worst": self.worst,
            "notes": list(self.notes),
        }


def phases_of(
    timeline: Timeline, device: Device, shapes: Sequence[BatchShape | None]
) -> dict[str, dict[MemoryKind, int]]:
    """Every moment's highest instant by kind; what the allocator holds beyond that is a kind of its own."""
    sizes, spans = timeline.read(shapes)
    on_device = np.where(timeline.on_host, 0, sizes)
    total, held = timeline.total(on_device), reserved_over_time(device, timeline, sizes)
    phases: dict[str, dict[MemoryKind, int]] = {}
    for name in PHASES:
        stretches = stretches_of(name, spans)
        if not stretches:
            continue
        highest = highest_tick(total, stretches)
        kinds = {kind: int(size) for kind, size in zip(KINDS, timeline.live_at(highest, on_device), strict=True)}
        del kinds[MemoryKind.HOST]
        kinds[MemoryKind.ALLOCATOR] = int(max(held[part].max() for part in stretches)) - int(total[highest])
        phases[name] = kinds
    return phases


def least_of(timeline: Timeline, shapes: Sequence[BatchShape | None]) -> int:
    """The most bytes that are alive at any moment: no allocator holds less."""
    sizes, spans = timeline.read(shapes)
    total = timeline.total(np.where(timeline.on_host, 0, sizes))
    return max(int(total[span.start : span.end + 1].max()) for span in spans if span.phase in PHASES)


def stretches_of(phase: str, spans: Sequence[Span]) -> list[slice]:
    """The ticks of a moment."""
    return [slice(span.start, span.end + 1) for span in spans if span.phase == phase]


def highest_tick(total: Numbers, stretches: Sequence[slice]) -> int:
    """When most is alive."""
    return max((part.start + int(total[part].argmax()) for part in stretches), key=lambda tick: total[tick])


def host_peak(timeline: Timeline, shapes: Sequence[BatchShape | None]) -> int:
    """The most bytes that wait in the memory around a card."""
    sizes, _ = timeline.read(shapes)
    return pinned_peak(timeline, sizes)
