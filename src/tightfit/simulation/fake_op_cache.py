"""Cache of fake-tensor ops: the result of an op for given argument shapes is computed once.

A trace has tens of thousands of ops, few of them distinct. torch's own cache makes more checks than plain tensors
need; a lookup here takes a fifth of that time. Anything other than plain tensors is passed on to torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from tightfit.compat import (
    DisableTorchDispatch,
    FakeTensor,
    OpOverload,
    grouped_mm,
    make_subclass,
    schema_of,
    storage_id,
)
from tightfit.simulation.known_values import VALUE

_MISSING = object()
_FIRST_ARGUMENT, _UNKNOWN = "first argument", "unknown"
_KEY_TYPES = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


class _NotCacheable(Exception):
    """An argument or result that is not determined by shapes alone."""


@dataclass(frozen=True, slots=True)
class _TensorLayout:
    """The layout of a cached result, with the attributes that torch gave it the first time."""

    shape: torch.Size
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    attributes: dict[str, Any]
    view_of: int | None
    """Index of the argument whose storage it shares; None if it has its own."""

    @classmethod
    def like(cls, tensor: Any, args: tuple[Any, ...]) -> _TensorLayout | None:
        """The layout of a result; None for None."""
        if tensor is None:
            return None
        if type(tensor) is not FakeTensor or tensor.constant is not None or tensor.requires_grad:
            raise _NotCacheable
        layout = tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype
        attributes = {name: value for name, value in tensor.__dict__.items() if name != VALUE}
        return cls(*layout, tensor.fake_device, attributes, _shares_memory_with(tensor, args))

    def make(self, args: tuple[Any, ...]) -> FakeTensor:
        """A new tensor of this layout, with its own storage or as a view of an argument."""
        with DisableTorchDispatch():
            if self.view_of is None:
                meta = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="meta")
            else:
                meta = torch.empty(0, dtype=self.dtype, device="meta")
                meta.set_(args[self.view_of].untyped_storage(), self.offset, self.shape, self.stride)
            tensor: FakeTensor = make_subclass(
                FakeTensor, meta, False, dispatch_device=True, device_for_backend_keys=self.device
            )
        tensor.__dict__.update(self.attributes)
        return tensor


class FakeOpCache:
    """Runs ops on fake tensors and caches their results."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of the op, from the cache where possible."""
        written = _written_by(func)
        if written is _UNKNOWN:
            return func(*args, **kwargs)
        compute = _FAKE_KERNELS.get(func, func)
        try:
            key = (func, _key(args), _key(tuple(kwargs.items())), torch.get_default_dtype())
        except _NotCacheable:
            return compute(*args, **kwargs)
        known = self._known.get(key, _MISSING)
        if known is _MISSING:
            return self._store(key, compute(*args, **kwargs), args)
        if written is not None:
            return args[0] if written == _FIRST_ARGUMENT else kwargs[written]
        return _map(lambda layout: layout and layout.make(args), known)

    def _store(self, key: Any, out: Any, args: tuple[Any, ...]) -> Any:
        with contextlib.suppress(_NotCacheable):
            self._known[key] = _map(lambda one: _TensorLayout.like(one, args), out)
        return out


@cache
def _written_by(func: Any) -> str | None:
    """The argument that an op writes to and returns; None if it returns something else, e.g. a view."""
    if not isinstance(func, OpOverload) or torch.Tag.inplace_view in func.tags:
        return _UNKNOWN
    schema = schema_of(func)
    returns = [str(value.type) for value in schema.returns]
    if not returns or any(kind not in ("Tensor", "List[Tensor]") for kind in returns):
        return _UNKNOWN
    written = [value for value in schema.arguments if value.alias_info and value.alias_info.is_write]
    if not written:
        return None
    if len(written) > 1 or returns != ["Tensor"]:
        return _UNKNOWN
    if written[0].kwarg_only:
        return str(written[0].name)
    return _FIRST_ARGUMENT if written[0].name == schema.arguments[0].name else _UNKNOWN


def _map(change: Callable[[Any], Any], out: Any) -> Any:
    if isinstance(out, (tuple, list)):
        return type(out)([change(one) for one in out])
    return change(out)


def _shares_memory_with(tensor: FakeTensor, args: tuple[Any, ...]) -> int | None:
    """Found by comparing storages, since not every op that returns a view declares it."""
    storage = storage_id(tensor.untyped_storage())
    for index, arg in enumerate(args):
        if type(arg) is FakeTensor and storage_id(arg.untyped_storage()) == storage:
            return index
    return None


def _key(value: Any) -> Any:
    kind = type(value)
    if kind is FakeTensor:
        if value.constant is not None:
            raise _NotCacheable
        return value.shape, value.stride(), value.storage_offset(), value.dtype
    if kind in _KEY_TYPES:
        return kind, value  # True, 1 and 1.0 are equal and make different types
    if kind is tuple or kind is list:
        return tuple([_key(one) for one in value])
    raise _NotCacheable


def _grouped_mm(left: torch.Tensor, right: torch.Tensor, offsets: torch.Tensor | None = None, **_: Any) -> torch.Tensor:
    """The products of groups of rows, of experts for example. torch's own fake kernel accepts bf16 only."""
    groups: tuple[int, ...] = ()
    if left.dim() == right.dim():
        groups = (len(left),) if offsets is None else (len(offsets),)
    return left.new_empty((*groups, left.shape[-2], right.shape[-1]))


def _layer_norm(states: torch.Tensor, shape: Any, weight: torch.Tensor | None, *rest: Any) -> tuple[torch.Tensor, ...]:
    """The mean and the deviation have the dtype of the weight. torch's own fake kernel gives them that of the input."""
    out, *statistics = _LAYER_NORM(states, shape, weight, *rest)
    return out, *[one if weight is None else one.to(weight.dtype) for one in statistics]


_LAYER_NORM = torch.ops.aten.native_layer_norm.default
_FAKE_KERNELS = {grouped_mm: _grouped_mm, _LAYER_NORM: _layer_norm}
