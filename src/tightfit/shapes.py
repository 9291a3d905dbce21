"""Shapes: whether a tensor is one, as in a rehearsal, or holds data."""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes


def is_shape(tensor: object) -> bool:
    """A tensor without data. Loops over pieces need only their first: the others take the same room again."""
    return isinstance(tensor, FakeTensor)


def with_data() -> AbstractContextManager[object]:
    """Tensors made inside hold data also in a rehearsal, which does not see them."""
    return _disable_current_modes()
