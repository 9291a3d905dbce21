"""Loss scaling: whether a loss was divided by the number of labels in the batch is seen by whether that number is used.

transformers passes `num_items_in_batch` to every head that takes further arguments, and then takes its loss for a sum
divided by that number. Heads that ignore it return the mean over a micro-batch, so that accumulated gradients become as
many times too large as there are micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


class ItemCount(torch.Tensor):
    """A number of items that remembers whether anything was computed with it."""

    plain: torch.Tensor
    """The same number as an ordinary tensor."""
    used: bool

    @classmethod
    def of(cls, items: torch.Tensor) -> ItemCount:
        """The same number, not used yet."""
        count: ItemCount = items.as_subclass(cls)
        count.plain, count.used = items, False
        return count

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Results are ordinary tensors."""
        return func(*map(_noted, args), **{name: _noted(value) for name, value in (kwargs or {}).items()})


def _noted(value: Any) -> Any:
    if not isinstance(value, ItemCount):
        return value
    value.used = True
    return value.plain
