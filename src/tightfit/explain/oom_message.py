"""Out-of-memory messages of torch, as numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tightfit.units import format_bytes, parse_bytes

_SIZE = r"([\d.]+ ?[KMGT]?i?B|\d+ bytes)"
_PATTERNS = {
    "asked": rf"[Tt]ried to allocate {_SIZE}|you tried to allocate {_SIZE}",
    "capacity": rf"total capaci?ty of {_SIZE}|{_SIZE} total capacity",  # torch 2.1 spelt it so
    "free": rf"of which {_SIZE} is free|{_SIZE} free",
    "allocated": rf"{_SIZE} is allocated by PyTorch|{_SIZE} already allocated",
    "unused": rf"{_SIZE} is reserved by PyTorch but unallocated",
    "reserved": rf"{_SIZE} reserved in total",
}
_OTHERS = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "MemoryError", "can't allocate memory", "Killed")
_SCATTERED = 0.15  # of the card: reserved and not used, more than what was asked for


@dataclass(frozen=True)
class OomMessage:
    """What a message says; None where it does not."""

    asked: int | None = None
    capacity: int | None = None
    free: int | None = None
    allocated: int | None = None
    unused: int | None = None
    reserved: int | None = None

    @property
    def sentence(self) -> str:
        """What happened, in one sentence."""
        if self.asked is None:
            return "Memory ran out; the message does not say by how much."
        facts = [f"{format_bytes(self.asked)} more were asked for"]
        if self.allocated is not None:
            facts.append(f"tensors held {format_bytes(self.allocated)}")
        if self.fragmented:
            facts.append(f"the allocator held {format_bytes(self.fragmented)} without a use")
        if self.free is not None:
            facts.append(f"{format_bytes(self.free)} were free")
        card = f" of {format_bytes(self.capacity)}" if self.capacity else ""
        return f"The card{card} overflowed: {', '.join(facts)}." if card else f"Memory ran out: {', '.join(facts)}."

    @property
    def fragmented(self) -> int:
        """Reserved by torch and not in use."""
        if self.unused is not None:
            return self.unused
        return max(0, self.reserved - self.allocated) if self.reserved and self.allocated else 0

    @property
    def hint(self) -> str | None:
        """Where the room was there, but in pieces."""
        if not self.asked or self.fragmented < max(self.asked, _SCATTERED * (self.capacity or 0)):
            return None
        return (
            "There was room, but in pieces: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before starting, "
            "and sort texts by length so that sizes repeat."
        )


def read_message(text: str) -> OomMessage | None:
    """The numbers of an out-of-memory message; None if the text holds none."""
    found = {name: _first(pattern, text) for name, pattern in _PATTERNS.items()}
    if found["asked"] is None and not any(word in text for word in _OTHERS):
        return None
    return OomMessage(**found)


def _first(pattern: str, text: str) -> int | None:
    match = re.search(pattern, text)
    if match is None:
        return None
    size = next(group for group in match.groups() if group)
    return int(size.removesuffix(" bytes")) if size.endswith("bytes") else parse_bytes(size)
