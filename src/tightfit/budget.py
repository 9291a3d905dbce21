"""Budget: how much memory a training may take, and on what device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tightfit.device import Device, find_device_or_card
from tightfit.units import format_bytes, parse_bytes


@dataclass(frozen=True)
class Budget:
    """Bytes on a device. On a CPU they are the whole process's, on a card those of torch and its context."""

    size: int
    device: Device

    @classmethod
    def of(cls, size: str | int | None = None, device: Device | str | None = None) -> Budget:
        """Read "4GB"; without a size it is what the device has."""
        where = device if isinstance(device, Device) else find_device_or_card(device)
        if size is None:
            return cls(_all_of(where), where)
        return cls(parse_bytes(size) if isinstance(size, str) else size, where)

    @cached_property
    def note(self) -> str | None:
        """What is odd about it."""
        there = self.device.memory
        if there is None or self.size <= there:
            return None
        return (
            f"the budget of {format_bytes(self.size)} is more than {self.device.title} has "
            f"({format_bytes(there)}): such a plan may fit the budget and not the device"
        )

    def __str__(self) -> str:
        return f"{format_bytes(self.size)} on {self.device.title}"


def _all_of(device: Device) -> int:
    """On a card all of it; on this machine what nobody else uses."""
    if device.kind != "cpu":
        return device.memory or 0
    import psutil

    return int(psutil.virtual_memory().available)
