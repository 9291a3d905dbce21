"""Kernels: what a device's own kernels would do, where tensors without data make torch choose others."""

from __future__ import annotations

from contextlib import AbstractContextManager

from tightfit.device import Device
from tightfit.rehearsal.kernels import cpu, cuda


def kernels_of(device: Device) -> AbstractContextManager[None]:
    """Inside, torch's functions allocate as they would on the device."""
    return cuda.kernels(device) if device.kind == "cuda" else cpu.kernels()
