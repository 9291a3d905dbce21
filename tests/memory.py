"""Bytes alive by kind while a training step runs on real tensors: the witness for what strategies claim.

Every storage that an operation makes is followed by weak reference until it dies. Weights, gradients and
optimizer state are known by where they hang; all the rest is activations and temporaries. What is made in host memory,
beside a card, is no part of it.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from tightfit.ops import fake


class LiveBytes(TorchDispatchMode):
    """The most bytes alive at once of storages made while this is on."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, int] = {}
        self.now = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in tree_iter(out):
            if isinstance(value, torch.Tensor):
                self._follow(value.untyped_storage())
        return out

    def _follow(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if fake.now.on_host:
            storage.on_host = True
        if key in self.alive or is_on_host(storage):
            return
        self.alive[key] = storage.nbytes()
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, key)

    def _gone(self, key: int) -> None:
        self.now -= self.alive.pop(key, 0)


def is_on_host(storage: torch.UntypedStorage) -> bool:
    """Whether it was made in the memory around a card."""
    return getattr(storage, "on_host", False)


def bytes_of(tensors: Any) -> int:
    """What some tensors hold together."""
    return sum(tensor.nbytes for tensor in tensors if not is_on_host(tensor.untyped_storage()))
