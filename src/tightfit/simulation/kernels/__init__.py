"""Kernels: the memory of the device's kernels, where the fake-tensor implementation uses a different kernel."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial

from tightfit.device import Device
from tightfit.simulation.kernels import cpu, cuda
from tightfit.simulation.trace import Scratch


def kernels_of(device: Device) -> AbstractContextManager[None]:
    """Inside, torch's functions allocate as they would on the device."""
    return cuda.kernels(device) if device.kind == "cuda" else cpu.kernels()


def workspaces_on(device: Device) -> list[int]:
    """Bytes of the workspaces that the device's libraries allocate on first use and keep."""
    return cuda.workspaces(device) if device.kind == "cuda" else []


def scratch_on(device: Device) -> Scratch:
    """Function that returns the temporary buffers of an op's kernel."""
    if device.kind == "cuda":
        return partial(cuda.scratch, device)
    return partial(cpu.scratch, bf16_products=device.bf16_products)
