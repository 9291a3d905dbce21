"""Timing: estimates how long training takes on a device, from the op counts of its simulation."""

from __future__ import annotations

from tightfit.device import Device
from tightfit.timing import calibrate
from tightfit.timing.predicted_step_time import Rates, StepTime, gpu_rates


def step_time_on(device: Device) -> StepTime:
    """Estimator with the rates measured on this machine's CPU, or those of a GPU: measured on it, or published."""
    return StepTime(calibrate.cpu_rates() if device.kind == "cpu" else gpu_rates(device))


__all__ = ["Rates", "StepTime", "step_time_on"]
