"""Explaining: an out-of-memory message or a script's settings in, what overflowed and what to edit out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tightfit.device import Device, find_device_or_gpu
from tightfit.errors import BadInput
from tightfit.explain.oom_message import OomMessage, read_message
from tightfit.explain.script import Edit, Settings, edits_for
from tightfit.units import format_bytes


@dataclass(frozen=True)
class Explanation:
    """What happened and the edits that mend it, the best first."""

    happened: tuple[str, ...]
    edits: tuple[Edit, ...]

    def to_json(self) -> dict[str, Any]:
        """For scripts."""
        return {"happened": list(self.happened), "edits": [edit.to_json() for edit in self.edits]}


def explain(message: str = "", settings: Settings | None = None, device: str | None = None) -> Explanation:
    """Read a message, a script's settings, or both."""
    overflow = read_message(message) if message.strip() else None
    if overflow is None and settings is None:
        raise BadInput("Nothing here looks like an out-of-memory message: paste it whole, or give --args FILE.")
    settings = settings or Settings()
    where = _device(device, overflow)
    happened = [overflow.sentence] if overflow else []
    if overflow and overflow.hint:
        happened.append(overflow.hint)
    if settings.unread:
        happened.append(f"{', '.join(settings.unread)} cannot be read without running the script: defaults are assumed")
    estimate, edits = edits_for(settings, where)
    if estimate is not None:
        kinds = sorted(estimate.phases[estimate.phase].items(), key=lambda item: -item[1])[:3]
        shares = ", ".join(f"{kind.value} {format_bytes(size)}" for kind, size in kinds)
        happened.append(f"{settings} takes {format_bytes(estimate.peak)} on {where.title}: {shares}")
    return Explanation(tuple(happened), tuple(edits))


def _device(word: str | None, overflow: OomMessage | None) -> Device:
    """The card named, or one as large as the message's."""
    from tightfit.device import GPUS

    if word is not None or overflow is None or not overflow.capacity:
        return find_device_or_gpu(word)
    sizes = [card for card in GPUS.values() if card.kind == "cuda" and card.memory is not None]
    return min(sizes, key=lambda card: abs((card.memory or 0) - (overflow.capacity or 0)))


__all__ = ["Explanation", "Settings", "explain"]
