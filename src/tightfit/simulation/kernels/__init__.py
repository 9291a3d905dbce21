"""Kernels: the memory of the device's kernels, where the fake-tensor implementation uses a different kernel."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from tightfit.device import Device
from tightfit.simulation.kernels import cpu, cuda


def kernels_of(device: Device) -> AbstractContextManager[None]:
    """Inside, torch's functions allocate as they would on the device."""
    return cuda.kernels(device) if device.kind == "cuda" else cpu.kernels()


def workspaces_on(device: Device) -> list[int]:
    """Bytes of the workspaces that the device's libraries allocate on first use and keep."""
    return cuda.workspaces(device) if device.kind == "cuda" else []


def scratch_on(device: Device) -> Callable[[Any, tuple[Any, ...]], list[int]]:
    """Function that returns the bytes of temporary buffers of an op's kernel."""
    return cuda.scratch if device.kind == "cuda" else cpu.scratch
