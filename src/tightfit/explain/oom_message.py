"""Parsing of torch's out-of-memory messages."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tightfit.messages import Message, msg
from tightfit.units import format_bytes, parse_bytes

_SIZE = r"([\d.]+ ?[KMGT]?i?B|\d+ bytes)"
_PATTERNS = {
    "requested": rf"[Tt]ried to allocate {_SIZE}|you tried to allocate {_SIZE}",
    "capacity": rf"total capaci?ty of {_SIZE}|{_SIZE} total capacity",  # torch 2.1 spells it "capacty"
    "free": rf"of which {_SIZE} is free|{_SIZE} free",
    "allocated": rf"{_SIZE} is allocated by PyTorch|{_SIZE} already allocated",
    "unused": rf"{_SIZE} is reserved by PyTorch but unallocated",
    "reserved": rf"{_SIZE} reserved in total",
}
_OTHERS = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "MemoryError", "can't allocate memory", "Killed")
_FRAGMENTED = 0.15  # of the GPU's memory: more than this reserved and unused counts as fragmentation


@dataclass(frozen=True)
class OomMessage:
    """The numbers of a message in bytes; None for those it does not contain."""

    requested: int | None = None
    capacity: int | None = None
    free: int | None = None
    allocated: int | None = None
    unused: int | None = None
    reserved: int | None = None

    @property
    def summary(self) -> Message:
        """What happened, in one sentence."""
        if self.requested is None:
            return msg("Out of memory; the message does not say how much was requested.")
        facts = [msg("{size} more requested", size=format_bytes(self.requested))]
        if self.allocated is not None:
            facts.append(msg("{size} allocated by tensors", size=format_bytes(self.allocated)))
        if self.fragmented:
            facts.append(msg("{size} reserved by the allocator but unused", size=format_bytes(self.fragmented)))
        if self.free is not None:
            facts.append(msg("{size} free", size=format_bytes(self.free)))
        if not self.capacity:
            return msg("Out of memory: {facts}.", facts=facts)
        return msg(
            "Out of memory on a GPU with {capacity}: {facts}.", capacity=format_bytes(self.capacity), facts=facts
        )

    @property
    def fragmented(self) -> int:
        """Bytes reserved by torch and not in use."""
        if self.unused is not None:
            return self.unused
        return max(0, self.reserved - self.allocated) if self.reserved and self.allocated else 0

    @property
    def advice(self) -> Message | None:
        """How to reduce fragmentation; None if it was not the cause."""
        if not self.requested or self.fragmented < max(self.requested, _FRAGMENTED * (self.capacity or 0)):
            return None
        return msg(
            "Memory was free but fragmented: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before starting, "
            "and group texts by length so that tensor sizes repeat."
        )


def read_message(text: str) -> OomMessage | None:
    """The numbers of an out-of-memory message; None if the text is not one."""
    found = {name: _first(pattern, text) for name, pattern in _PATTERNS.items()}
    if found["requested"] is None and not any(phrase in text for phrase in _OTHERS):
        return None
    return OomMessage(**found)


def _first(pattern: str, text: str) -> int | None:
    match = re.search(pattern, text)
    if match is None:
        return None
    size = next(group for group in match.groups() if group)
    return int(size.removesuffix(" bytes")) if size.endswith("bytes") else parse_bytes(size)
