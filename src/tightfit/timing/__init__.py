"""Clock: how long a training takes on a device, from the work that its rehearsal noted."""

from __future__ import annotations

from tightfit.device import Device
from tightfit.timing.estimate import Clock, Rates


def clock_for(device: Device) -> Clock:
    """With rates measured on this machine's processor, or published ones of a card."""
    if device.kind == "cpu":
        from tightfit.timing.calibrate import rates_of_this_machine

        return Clock(rates_of_this_machine())
    from tightfit.timing.estimate import rates_of_card

    return Clock(rates_of_card(device))


__all__ = ["Clock", "Rates", "clock_for"]
