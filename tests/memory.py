"""Live bytes while a training step runs on real tensors, to check what strategies declare.

Every storage that an operation allocates is tracked by weak reference until it is freed. Weights, gradients and
optimizer state are found through model and optimizer; the rest is activations and temporary tensors. Host memory of a
simulated GPU is not counted.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from tightfit.ops import fake


class LiveBytes(TorchDispatchMode):
    """Live bytes of the storages allocated while this mode is active, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, int] = {}
        self.now = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in tree_iter(out):
            if isinstance(value, torch.Tensor):
                self._track(value.untyped_storage())
        return out

    def _track(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if fake.context().on_host:
            storage.on_host = True
        if key in self.alive or is_on_host(storage):
            return
        self.alive[key] = storage.nbytes()
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._freed, key)

    def _freed(self, key: int) -> None:
        self.now -= self.alive.pop(key, 0)


def is_on_host(storage: torch.UntypedStorage) -> bool:
    """Whether it was allocated in host memory."""
    return getattr(storage, "on_host", False)


def bytes_of(tensors: Any) -> int:
    """The total size of some tensors."""
    return sum(tensor.nbytes for tensor in tensors if not is_on_host(tensor.untyped_storage()))
