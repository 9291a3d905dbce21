"""Doctor: what this machine trains on, what stands in the way, and whether predictions are right on it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Protocol

from tightfit.device import Device, find_device
from tightfit.doctor.machine import Finding, examine, gpu_problem
from tightfit.doctor.self_check import SelfCheck, check_predictions
from tightfit.messages import Message, as_data, msg
from tightfit.runs.record import versions

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

_VERSION = 1


class Listener(Protocol):
    """Shows what is under way; usually the terminal."""

    def status(self, what: Message) -> AbstractContextManager[None]: ...


@dataclass(frozen=True)
class Diagnosis:
    """What was found."""

    device: Device
    findings: list[Finding]
    problems: list[Message]
    """Why the GPU of this machine cannot be used, and what to install."""
    check: SelfCheck | None
    """None if it was not asked for."""

    @property
    def is_healthy(self) -> bool:
        """Whether the device can be used, and the check trained every recipe."""
        return not self.problems and not (self.check and self.check.failures)

    def to_json(self) -> dict[str, Any]:
        """For scripts, and for the records of this project: no paths and no names of processes."""
        return {
            "doctor": _VERSION,
            "created_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "versions": versions(),
            "device": self.device.label,
            "kind": self.device.kind,
            "healthy": self.is_healthy,
            "findings": {finding.key: as_data(finding.value) for finding in self.findings},
            "problems": as_data(self.problems),
            "self_check": self.check.to_json() if self.check else None,
        }


def diagnose(device: str | None, *, quick: bool, listener: Listener) -> Diagnosis:
    """Look at the device, measure its speed and, unless `quick`, train a small model on it by several recipes."""
    where, problems = _usable_device(device)
    with listener.status(msg("examining {device}", device=where.label)):
        findings = list(examine(where))
    if quick:
        return Diagnosis(where, findings, problems, None)
    with listener.status(msg("training a small model by several recipes")):
        return Diagnosis(where, findings, problems, check_predictions(where))


def _usable_device(name: str | None) -> tuple[Device, list[Message]]:
    """The device; the CPU and a problem if the machine has a GPU that this torch cannot use."""
    problem = gpu_problem() if name is None or name.startswith("cuda") else None
    return find_device("cpu" if problem else name), [problem] if problem else []
