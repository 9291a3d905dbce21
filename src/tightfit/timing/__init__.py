"""Clock: how long a training takes on a device, from the work that its rehearsal noted."""

from __future__ import annotations

from tightfit.device import Device
from tightfit.timing.estimate import Rates, StepTime


def step_time_on(device: Device) -> StepTime:
    """With rates measured on this machine's processor, or published ones of a card."""
    if device.kind == "cpu":
        from tightfit.timing.calibrate import cpu_rates

        return StepTime(cpu_rates())
    from tightfit.timing.estimate import gpu_rates

    return StepTime(gpu_rates(device))


__all__ = ["Rates", "StepTime", "step_time_on"]
