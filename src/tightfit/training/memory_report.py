"""Memory report: what a training with the user's own objects was predicted to need, and what it needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tightfit.display import Display
from tightfit.messages import Message
from tightfit.simulation.estimate import Estimate


@dataclass(frozen=True)
class MemoryReport(Display):
    """Measured memory by phase, beside what was predicted."""

    estimate: Estimate | None
    """None where nothing was planned."""
    measured: dict[str, int]
    """Peak bytes of each phase."""
    events: tuple[Message, ...]
    """What was planned, and what happened, such as recoveries from out-of-memory errors."""
    device: str

    @property
    def peak(self) -> int:
        """The most bytes in use."""
        return max(self.measured.values(), default=0)

    @property
    def predicted(self) -> dict[str, int]:
        """Predicted bytes of each phase."""
        if self.estimate is None:
            return {}
        return {phase: self.estimate.overhead + sum(kinds.values()) for phase, kinds in self.estimate.phases.items()}

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        return {
            "peak_bytes": self.peak,
            "predicted_peak_bytes": self.estimate.peak if self.estimate is not None else None,
            "measured": self.measured,
            "predicted": self.predicted,
            "events": list(self.events),
            "device": self.device,
        }
