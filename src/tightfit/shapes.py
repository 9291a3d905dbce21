"""Shapes: whether a tensor is one, as in a rehearsal, or holds data."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor


def is_shape(tensor: object) -> bool:
    """A tensor without data. Loops over pieces need only their first: the others take the same room again."""
    return isinstance(tensor, FakeTensor)


def numbers_at_once(tensor: torch.Tensor, limit: int) -> int:
    """How many numbers a piece of a tensor holds; without data all of them, since they take no time."""
    return max(1, tensor.numel()) if is_shape(tensor) else limit
