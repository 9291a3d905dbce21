"""Offload to host memory: pinned copies of GPU tensors, and activations that are offloaded until the backward pass.

Copies to and from the host are queued on the GPU's stream, so none is read before it is complete. The host memory is
pinned, which lets the GPU read it directly, at twice the speed.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from tightfit.compat import StorageWeakRef, storage_id, version_of
from tightfit.ops.fake import counts_as, on_host

TRANSFER = "copies to and from host memory"  # op kinds, for op counts
HOST_WORK = "work of the host's processor"


def to_host(tensor: torch.Tensor, *, wait: bool = False) -> torch.Tensor:
    """A copy in host memory; with `wait` it is complete on return, so that the CPU can read it."""
    with on_host():
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda)
    with counts_as(kind=TRANSFER):
        return copy.copy_(tensor, non_blocking=not wait)


def to_device(copy: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy on the GPU of what was offloaded."""
    tensor = torch.empty(copy.shape, dtype=copy.dtype, device=device)
    with counts_as(kind=TRANSFER):
        return tensor.copy_(copy, non_blocking=True)


# Activations. torch calls a hook for every tensor that it saves for the backward pass. Weights are on the GPU anyway
# and small tensors are not worth a copy: they stay. Several operations save the same memory, often under another
# shape: it is copied to the host once.


def offload_saved_tensors(model: torch.nn.Module, min_bytes: int) -> None:
    """Keep in host memory the tensors of at least `min_bytes` that the model's forward saves for the backward pass."""
    forward = model.forward

    @wraps(forward)
    def offloading(*args: Any, **kwargs: Any) -> Any:
        with saved_tensors_hooks(SavedTensorStore(model, min_bytes).pack, _unpack):
            return forward(*args, **kwargs)

    model.forward = offloading


@dataclass(frozen=True)
class OffloadedTensor:
    """A saved tensor in host memory."""

    copy: torch.Tensor
    """Its elements in memory order."""
    shape: torch.Size
    stride: tuple[int, ...]
    device: torch.device


class SavedTensorStore:
    """Offloads the saved tensors of one forward pass."""

    def __init__(self, model: torch.nn.Module, min_bytes: int) -> None:
        self._min_bytes = min_bytes
        self._resident = {storage_id(tensor.untyped_storage()) for tensor in (*model.parameters(), *model.buffers())}
        self._copies: dict[tuple[Any, ...], tuple[StorageWeakRef, weakref.ref[torch.Tensor]]] = {}

    def pack(self, tensor: torch.Tensor) -> torch.Tensor | OffloadedTensor:
        """The offloaded tensor, or the tensor itself where it stays on the GPU."""
        tensor = tensor.detach()  # with its graph it would be part of a reference cycle
        stays = storage_id(tensor.untyped_storage()) in self._resident
        if stays or tensor.nbytes < max(1, self._min_bytes) or not _is_dense(tensor):
            return tensor
        return OffloadedTensor(self._copy_of(tensor), tensor.shape, tensor.stride(), tensor.device)

    def _copy_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """A host copy; shared by all views of the same memory, unless it was written to in between."""
        memory = StorageWeakRef(tensor.untyped_storage())
        key = (memory.cdata, tensor.storage_offset(), tensor.numel(), version_of(tensor), tensor.dtype)
        known, reference = self._copies.get(key, (None, None))
        copy = reference() if reference is not None else None
        if known is None or known.expired() or copy is None:
            copy = to_host(tensor.as_strided((tensor.numel(),), (1,)))
            self._copies[key] = memory, weakref.ref(copy)
        return copy


def _unpack(saved: torch.Tensor | OffloadedTensor) -> torch.Tensor:
    if isinstance(saved, torch.Tensor):
        return saved
    return to_device(saved.copy, saved.device).as_strided(saved.shape, saved.stride)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor covers one contiguous range of memory, in any order; an expanded mask does not."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
