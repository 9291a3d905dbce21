"""CUDA's autocast on fake tensors: ops that run in fp32, in 16 bits, or in the widest type of their inputs.

Fake tensors report the CPU as their device, so the CPU's autocast is active. It leaves many ops in 16 bits that CUDA's
runs in fp32, such as `pow`, `sum`, `exp` and `layer_norm`. torch's dispatcher tells which: those that have a kernel for
CUDA's autocast and none for the CPU's. Inside `cuda_autocast` they have one for the CPU's too, in this thread only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import Any

import torch

from tightfit.compat import autocast_ops, below_autocast, cpu_autocast_kernels, schema_of, softmax_in_fp32

_LOWER = {  # matrix products that only CUDA's autocast runs in 16 bits
    "_convolution", "convolution", "addmv", "addr", "mv", "chain_matmul", "einsum", "linalg_multi_dot",
    "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
}  # fmt: skip
_WIDEST = {
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "index_put", "tensordot", "scatter_add",
}  # fmt: skip
_NOT_CALLED = ("cudnn", "flash_attention")  # kernels that other ops choose
_WITHOUT_COPY = {"softmax.int": False, "log_softmax.int": True}  # whether the result is a logarithm

Kernel = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


def cuda_autocast() -> AbstractContextManager[None]:
    """Inside, the CPU's autocast treats these ops as CUDA's does; in other threads it stays as it is."""
    thread = threading.get_ident()
    return cpu_autocast_kernels((name, partial(_dispatch, thread, op, kernel)) for name, op, kernel in _kernels())


def _dispatch(thread: int, op: Any, kernel: Kernel, keys: Any, *args: Any, **kwargs: Any) -> Any:
    if threading.get_ident() != thread:
        return op.redispatch(below_autocast(keys), *args, **kwargs)
    with torch.autocast("cpu", enabled=False):
        return kernel(op, args, kwargs)


@cache
def _kernels() -> list[tuple[str, Any, Kernel]]:
    """The ops that only CUDA's autocast knows, each with what it does."""
    names = autocast_ops("CUDA") - autocast_ops("CPU")
    return [
        (name, op := _op(name), _kernel_of(name, op))
        for name in sorted(names)
        if not any(kernel in name for kernel in _NOT_CALLED)
    ]


def _op(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _kernel_of(name: str, op: Any) -> Kernel:
    packet = name.partition(".")[0]
    if packet in _LOWER:
        return _in_16_bits
    if packet in _WIDEST:
        return _in_widest
    if name in _WITHOUT_COPY:
        return partial(_softmax, _WITHOUT_COPY[name])
    if packet == "norm":
        return _norm
    if any(argument.name == "dtype" for argument in schema_of(op).arguments):
        return _into_fp32
    return _in_fp32


def _in_16_bits(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _cast(torch.get_autocast_dtype("cpu"), op, args, kwargs)


def _in_fp32(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _cast(torch.float32, op, args, kwargs)


def _in_widest(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensors = [value for value in args if isinstance(value, torch.Tensor)]
    is_wide = any(tensor.dtype == torch.float32 for tensor in tensors)
    return _cast(torch.float32 if is_wide else torch.get_autocast_dtype("cpu"), op, args, kwargs)


def _into_fp32(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The kernel converts while it reads: no copy of the input is made."""
    if _is_eligible(args[0]) and kwargs.get("dtype") is None:
        kwargs = {**kwargs, "dtype": torch.float32}
    return op(*args, **kwargs)


def _softmax(is_log: bool, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """On CUDA, softmax has a kernel that reads fp16 and writes fp32; bf16 is converted first."""
    states, dim, *dtype = args
    if states.dtype == torch.float16 and not any(dtype) and kwargs.get("dtype") in (None, torch.float32):
        return softmax_in_fp32(states, dim, is_log=is_log)
    return _into_fp32(op, args, kwargs) if not any(dtype) else op(*args, **kwargs)


def _norm(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`norm` takes its result's type by another overload."""
    states, p, *dims = args
    dtype = torch.float32 if _is_eligible(states) else states.dtype
    return torch.norm(states, p, *(dims or [None]), dtype=dtype, **kwargs)


def _cast(dtype: torch.dtype, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return op(*(_converted(value, dtype) for value in args), **{k: _converted(v, dtype) for k, v in kwargs.items()})


def _converted(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_converted(each, dtype) for each in value)
    return value.to(dtype) if _is_eligible(value) else value


def _is_eligible(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64
