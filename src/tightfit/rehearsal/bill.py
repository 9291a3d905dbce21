"""Bill: what a training will take, as bytes by moment and kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tightfit.rehearsal.tape import KINDS, Tape
from tightfit.strategy import Kind

MOMENTS = ("load", "forward", "backward", "step", "evaluate", "save", "load-best")


@dataclass(frozen=True, kw_only=True)
class Bill:
    """The memory cost of a recipe. The peak is the largest moment, not a sum."""

    moments: dict[str, dict[Kind, int]]
    """Bytes of each kind at the moment's highest instant."""
    overhead: int
    """What is there without any tensor: the process and its libraries, or a card's context."""
    device: str
    parameters: int
    trainable_parameters: int
    worst: str
    """Which rows make it so large."""

    @property
    def peak(self) -> int:
        """The most bytes at any moment."""
        return self.overhead + max(sum(kinds.values()) for kinds in self.moments.values())

    @property
    def moment(self) -> str:
        """When that is."""
        return max(self.moments, key=lambda name: sum(self.moments[name].values()))

    def to_json(self) -> dict[str, Any]:
        """The bill for scripts."""
        return {
            "peak_bytes": self.peak,
            "moment": self.moment,
            "bill": {name: {kind.value: size for kind, size in kinds.items()} for name, kinds in self.moments.items()},
            "device": self.device,
            "overhead_bytes": self.overhead,
            "trainable_parameters": self.trainable_parameters,
            "parameters": self.parameters,
            "worst": self.worst,
        }


def moments_of(tape: Tape) -> dict[str, dict[Kind, int]]:
    """The highest instant of every moment, split by kind."""
    over_time = tape.bytes_over_time()
    total = over_time.sum(axis=1)
    highest: dict[str, int] = {}
    for name, start, end in tape.spans():
        tick = start + int(total[start : end + 1].argmax())
        if name in MOMENTS and total[tick] >= total[highest.get(name, tick)]:
            highest[name] = tick
    return {
        name: {kind: int(size) for kind, size in zip(KINDS, over_time[highest[name]], strict=True)}
        for name in MOMENTS
        if name in highest
    }
