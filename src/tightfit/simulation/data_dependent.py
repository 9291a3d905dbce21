"""Results of data-dependent operations, which fake tensors cannot compute.

The results are those of a usual batch. Some heads (T5, BART) look for the end token of each row and check that every
row has one: every row has exactly one, and every check passes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from tightfit.compat import FakeTensor, index_put_in_place, read_scalar

if TYPE_CHECKING:
    pass

_aten = torch.ops.aten


def usual_result(func: Any, args: tuple[Any, ...]) -> Any:
    """The usual result of an op whose result depends on data; None for any other op."""
    make_result = _USUAL_RESULTS.get(func)
    if make_result is None or not isinstance(args[0], FakeTensor):
        return None
    return make_result(*args)


def _one_value(values: torch.Tensor, inverse: bool = False, counts: bool = False, dim: int | None = None) -> Any:
    """unique_consecutive: all rows have the same value."""
    return values.flatten()[:1].clone(), values.new_empty(values.shape), values.new_empty(1)


def _yes(value: torch.Tensor) -> bool | None:
    return True if value.dtype == torch.bool else None


def _one_of_each_row(values: torch.Tensor, indices: list[Any]) -> Any:
    return values[:, 0].clone() if _is_row_mask(indices) else None


def _put_back(values: torch.Tensor, indices: list[Any], *rest: Any) -> Any:
    return values if _is_row_mask(indices) else None


def _is_row_mask(indices: list[Any]) -> bool:
    return len(indices) == 1 and indices[0] is not None and indices[0].dtype == torch.bool and indices[0].dim() == 2


_USUAL_RESULTS: dict[Any, Callable[..., Any]] = {
    _aten.unique_consecutive.default: _one_value,
    read_scalar: _yes,
    _aten.index.Tensor: _one_of_each_row,
    index_put_in_place: _put_back,
    _aten.index_put_.default: _put_back,
    _aten.index_put.default: _put_back,
}
