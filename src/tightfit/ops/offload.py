"""Host memory: where tensors of a card wait, in the machine around it.

Copies go there and back in the card's own order of work, so none is read before it is there. The memory is pinned,
which lets the card fetch it by itself, at twice the speed.
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

TRANSFER = "copies to and from host memory"  # sorts of work, for those who count it
HOST_WORK = "work of the host's processor"


def to_host(tensor: torch.Tensor, *, wait: bool = False) -> torch.Tensor:
    """A copy in host memory. With `wait` it is there when this returns, for the processor to read."""
    with on_host():
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda)
    with counts_as(sort=TRANSFER):
        return copy.copy_(tensor, non_blocking=not wait)


def to_device(copy: torch.Tensor, device: torch.device) -> torch.Tensor:
    """What waited, back where it came from."""
    tensor = torch.empty(copy.shape, dtype=copy.dtype, device=device)
    with counts_as(sort=TRANSFER):
        return tensor.copy_(copy, non_blocking=True)


# Waiting: what the backward pass will need, kept in host memory until it is asked for.
#
# torch hands over every tensor that it would keep. Weights are on the card anyway and small tensors are not worth the
# way: they stay. Several operations keep the same tensor, often under another shape: it goes to the host once.


def offload_saved_tensors(model: torch.nn.Module, smallest: int) -> None:
    """From now on, what a forward pass of the model keeps waits there, from so many bytes on."""
    forward = model.forward

    @wraps(forward)
    def keeping(*args: Any, **kwargs: Any) -> Any:
        with saved_tensors_hooks(SavedTensorStore(model, smallest).take, _give_back):
            return forward(*args, **kwargs)

    model.forward = keeping


@dataclass(frozen=True)
class OffloadedTensor:
    """What stands for a tensor that waits."""

    copy: torch.Tensor
    """Its numbers in the order they have in memory."""
    shape: torch.Size
    stride: tuple[int, ...]
    device: torch.device


class SavedTensorStore:
    """Takes the tensors of one forward pass."""

    def __init__(self, model: torch.nn.Module, smallest: int) -> None:
        self._smallest = smallest
        self._stays = {storage_id(tensor.untyped_storage()) for tensor in (*model.parameters(), *model.buffers())}
        self._known: dict[tuple[Any, ...], tuple[StorageWeakRef, weakref.ref[torch.Tensor]]] = {}

    def take(self, tensor: torch.Tensor) -> torch.Tensor | OffloadedTensor:
        """A ticket, or the tensor itself where it stays."""
        tensor = tensor.detach()  # itself, it would hold the graph that holds it
        stays = storage_id(tensor.untyped_storage()) in self._stays
        if stays or tensor.nbytes < max(1, self._smallest) or not _is_dense(tensor):
            return tensor
        return OffloadedTensor(self._copy_of(tensor), tensor.shape, tensor.stride(), tensor.device)

    def _copy_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The one that was made for another look at the same memory, unless it was written to since."""
        memory = StorageWeakRef(tensor.untyped_storage())
        key = (memory.cdata, tensor.storage_offset(), tensor.numel(), version_of(tensor), tensor.dtype)
        known, waiting = self._known.get(key, (None, None))
        copy = waiting() if waiting is not None else None
        if known is None or known.expired() or copy is None:
            copy = to_host(tensor.as_strided((tensor.numel(),), (1,)))
            self._known[key] = memory, weakref.ref(copy)
        return copy


def _give_back(kept: torch.Tensor | OffloadedTensor) -> torch.Tensor:
    if isinstance(kept, torch.Tensor):
        return kept
    return to_device(kept.copy, kept.device).as_strided(kept.shape, kept.stride)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether it has one piece of memory to itself, in whatever order; an expanded mask has not."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
