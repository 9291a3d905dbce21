"""Clock: how long a training takes on a device, from the work that its rehearsal noted."""

from __future__ import annotations

from tightfit.clock.clock import Clock
from tightfit.clock.rates import Rates
from tightfit.device import Device


def clock_for(device: Device) -> Clock:
    """With rates measured on this machine's processor, or published ones of a card."""
    if device.kind == "cpu":
        from tightfit.clock.measured import rates_of_this_machine

        return Clock(rates_of_this_machine())
    from tightfit.clock.published import rates_of_card

    return Clock(rates_of_card(device))


__all__ = ["Clock", "Rates", "clock_for"]
