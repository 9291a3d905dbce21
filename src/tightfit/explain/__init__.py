"""Explanations of out-of-memory errors: what ran out, and which edits of the training script fix it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tightfit.device import GPUS, Device, find_device_or_gpu
from tightfit.errors import BadInput
from tightfit.explain.oom_message import OomMessage, read_message
from tightfit.explain.script import Edit, ScriptArgs, edits_for
from tightfit.messages import Message, msg, name
from tightfit.simulation.estimate import Estimate
from tightfit.units import format_bytes


@dataclass(frozen=True)
class Explanation:
    """What happened, and the edits that fix it, the best first."""

    findings: tuple[Message, ...]
    edits: tuple[Edit, ...]

    def to_json(self) -> dict[str, Any]:
        """The explanation as JSON values."""
        return {"findings": list(self.findings), "edits": [edit.to_json() for edit in self.edits]}


def explain(message: str = "", settings: ScriptArgs | None = None, device: str | None = None) -> Explanation:
    """Explain an out-of-memory message, a script's settings, or both."""
    error = read_message(message) if message.strip() else None
    if error is None and settings is None:
        raise BadInput(msg("This is not an out-of-memory message: paste the complete message, or give --args FILE."))
    settings = settings or ScriptArgs()
    where = _device(device, error)
    findings = [error.summary] if error else []
    if error and error.advice:
        findings.append(error.advice)
    if settings.unresolved:
        findings.append(
            msg(
                "{settings} cannot be read without running the script: defaults are assumed",
                settings=settings.unresolved,
            )
        )
    estimate, edits = edits_for(settings, where)
    if estimate is not None:
        findings.append(_need(settings, estimate, where))
    return Explanation(tuple(findings), tuple(edits))


def _need(settings: ScriptArgs, estimate: Estimate, device: Device) -> Message:
    """What the training needs, with the three largest kinds of memory."""
    largest = sorted(estimate.phases[estimate.phase].items(), key=lambda item: -item[1])[:3]
    return msg(
        "{settings} needs {peak} on {device}: {kinds}",
        settings=settings.title,
        peak=format_bytes(estimate.peak),
        device=device.label,
        kinds=[msg("{kind} {size}", kind=name(kind.value), size=format_bytes(size)) for kind, size in largest],
    )


def _device(name: str | None, error: OomMessage | None) -> Device:
    """The named device, or the known GPU closest in size to the one in the message."""
    if name is not None or error is None or not error.capacity:
        return find_device_or_gpu(name)
    gpus = [gpu for gpu in GPUS.values() if gpu.kind == "cuda" and gpu.total_bytes is not None]
    return min(gpus, key=lambda gpu: abs((gpu.total_bytes or 0) - (error.capacity or 0)))


__all__ = ["Explanation", "ScriptArgs", "explain"]
