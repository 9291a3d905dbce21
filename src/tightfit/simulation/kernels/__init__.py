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


def workspace_on(device: Device) -> int | None:
    """Bytes of the workspace that the device's library of matrix products keeps for each thread; None for none."""
    return cuda.workspace(device) if device.kind == "cuda" else None


def scratch_on(device: Device) -> Scratch:
    """Function that returns the temporary buffers of an op's kernel."""
    if device.kind == "cuda":
        return partial(cuda.scratch, device)
    return partial(cpu.scratch, bf16_products=device.bf16_products)
