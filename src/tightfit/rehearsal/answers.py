"""Answers: what code that looks at its data would find in a usual batch, where a rehearsal has no data to look at.

Some heads (T5, BART) read a text at its end token: they ask where it is, and whether every row has one. The
answer is that every row has exactly one, and that what is checked is in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tightfit.compat import FakeTensor, index_put_in_place, read_scalar

_aten = torch.ops.aten


def answer(func: Any, args: tuple[Any, ...]) -> Any:
    """The usual outcome of an operation whose outcome depends on data; None where it does not."""
    reply = _REPLIES.get(func)
    if reply is None or not isinstance(args[0], FakeTensor):
        return None
    return reply(*args)


def _one_value(values: torch.Tensor, inverse: bool = False, counts: bool = False, dim: int | None = None) -> Any:
    """unique_consecutive: all rows agree."""
    return values.flatten()[:1].clone(), values.new_empty(values.shape), values.new_empty(1)


def _yes(value: torch.Tensor) -> bool | None:
    return True if value.dtype == torch.bool else None


def _one_of_each_row(values: torch.Tensor, indices: list[Any]) -> Any:
    return values[:, 0].clone() if _is_row_mask(indices) else None


def _put_back(values: torch.Tensor, indices: list[Any], *rest: Any) -> Any:
    return values if _is_row_mask(indices) else None


def _is_row_mask(indices: list[Any]) -> bool:
    return len(indices) == 1 and indices[0] is not None and indices[0].dtype == torch.bool and indices[0].dim() == 2


_REPLIES: dict[Any, Callable[..., Any]] = {
    _aten.unique_consecutive.default: _one_value,
    read_scalar: _yes,
    _aten.index.Tensor: _one_of_each_row,
    index_put_in_place: _put_back,
    _aten.index_put_.default: _put_back,
    _aten.index_put.default: _put_back,
}
