"""Memory of CUDA's libraries: what a GPU holds beside the tensors of a training, and how that is known."""

from __future__ import annotations

from typing import NamedTuple

from tightfit.device import Device
from tightfit.gpus import measured_gpu, published_contexts
from tightfit.messages import Message, msg
from tightfit.units import format_bytes


class LibraryMemory(NamedTuple):
    """Memory that one library takes during a whole training."""

    name: Message
    size: int
    source: Message


def library_memory(device: Device) -> list[LibraryMemory]:
    """By library; nothing on a CPU, where libraries belong to the measured process.

    cuDNN takes none by itself: the workspaces of convolutions, which few text models have, are from torch's allocator.
    """
    if device.kind != "cuda":
        return []
    from tightfit.simulation.kernels import workspace_on

    workspaces = 2 * (workspace_on(device) or 0)  # one each for the threads of the forward and the backward pass
    return [
        LibraryMemory(msg("CUDA context and kernels"), device.context_bytes, _context_source(device)),
        LibraryMemory(
            msg("cuBLAS workspaces"), workspaces, msg("torch's default, in the forward pass and in the backward pass")
        ),
    ]


def _context_source(device: Device) -> Message:
    if device.context_bytes == measured_gpu(device.uuid).context:
        return msg("measured on this GPU")
    if device.maker != "NVIDIA":
        return msg("assumed, as for NVIDIA GPUs")
    low, high = map(format_bytes, published_contexts())
    return msg("assumed; others measured {low} to {high}, with CUDA 11.7 and later", low=low, high=high)
