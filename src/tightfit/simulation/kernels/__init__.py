"""Kernels: what a device's own kernels would do, where tensors without data make torch choose others."""

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
    """What the device's libraries take for good when they are first used."""
    return cuda.workspaces(device) if device.kind == "cuda" else []


def scratch_on(device: Device) -> Callable[[Any, tuple[Any, ...]], list[int]]:
    """What the device's kernels take for themselves while they run."""
    return cuda.scratch if device.kind == "cuda" else cpu.scratch
