"""CUDA kernels: dropout with a one-byte mask, fused attention, and autocast as on CUDA.

The functions are patched, not intercepted by a mode: a mode is not active while checkpointed layers are recomputed.
They are patched also where torch has CUDA, so that an estimate does not depend on the machine that made it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from tightfit.compat import efficient_attention, efficient_attention_backward, flash_attention
from tightfit.device import Device
from tightfit.simulation.kernels.autocast import cuda_autocast
from tightfit.simulation.kernels.cpu import MATMULS, additive_mask
from tightfit.simulation.patches import replaced
from tightfit.simulation.trace import Buffer

_functions = torch.nn.functional
_torch_attention = _functions.scaled_dot_product_attention
_torch_dropout = _functions.dropout
_FLASH_CAPABILITY, _FLASH_MAX_WIDTH = 80, 256
_SUMS = {torch.ops.aten.sum.dim_IntList, torch.ops.aten.mean.dim}
_TILE, _TILE_HEADER = 64, 16
_REDUCE_THREADS, _WARP = 512, 32
_WORKSPACE, _WORKSPACE_HOPPER = 8320 << 10, 32 << 20  # torch's defaults: 2 x 4096 + 8 x 16 KiB; 32 MiB


@contextlib.contextmanager
def kernels(device: Device) -> Iterator[None]:
    """Dropout, attention and autocast behave as on a GPU."""
    with contextlib.ExitStack() as patches:
        patches.enter_context(cuda_autocast())
        patches.enter_context(replaced(_functions, "dropout", _dropout))
        attention = partial(_attention, device.capability >= _FLASH_CAPABILITY)
        patches.enter_context(replaced(_functions, "scaled_dot_product_attention", attention))
        yield


def scratch(device: Device, func: Any, args: tuple[Any, ...]) -> list[Buffer]:
    """cuBLAS needs contiguous matrices: an expanded one is copied first. Sums of columns have a buffer."""
    if func in _SUMS:
        return _column_sums(device, *args[:2])
    if func is efficient_attention_backward:
        return _attention_gradients(device, args[1])
    if func not in MATMULS:
        return []
    matrices = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.dim() >= 2]
    return [Buffer(m.numel() * m.element_size()) for m in matrices if 0 in m.stride()[-2:] and m.numel() > 1]


def _attention_gradients(device: Device, query: torch.Tensor) -> list[Buffer]:
    """The backward pass of memory-efficient attention adds up gradients in fp32, in tiles of 64 tokens x 64 values.

    In 16 bits, wide heads do so for keys and values too where a multiprocessor has little shared memory. In fp32 the
    kernel is given the sums over the product of the output and its gradient, which another kernel computes before.
    """
    rows, heads, tokens, width = query.shape
    is_fp32 = query.dtype == torch.float32
    product = Buffer(4 * query.numel(), after_result=True, freed_first=True)
    sums = Buffer(4 * rows * heads * tokens, after_result=True)
    tiles = -(-width // _TILE)
    all_three = tiles > 1 and query.element_size() == 2 and device.capability in (86, 89, 120)
    copies = 3 if all_three else 1
    per_token = tiles * (4 * _TILE * copies + _TILE_HEADER / _TILE)
    return [*([product] if is_fp32 else []), sums, Buffer(round(rows * heads * tokens * per_token), after_result=True)]


def _column_sums(device: Device, matrix: torch.Tensor, dims: Any) -> list[Buffer]:
    """The sum over the rows of a tall matrix, such as the gradient of a bias, is split over the whole GPU.

    As in `setReduceConfig` of torch's Reduce.cuh: a block of threads sums some columns; if each thread would sum 256
    values or more, several blocks share the rows, at 16 values per thread, as long as multiprocessors are free. Each
    thread of these blocks writes its sums to the buffer, in fp32.
    """
    dims = [dim % matrix.dim() for dim in dims or ()]
    if not dims or sorted(dims) != list(range(len(dims))) or len(dims) == matrix.dim() or not matrix.is_contiguous():
        return []
    columns = math.prod(matrix.shape[len(dims) :])
    vector = math.gcd(columns, 4)
    width = min(_floor_to_power_of_2(columns // vector), _WARP)
    height = _REDUCE_THREADS // vector // width
    blocks = device.multiprocessors * (_threads_per_multiprocessor(device) // (width * height))
    splits = -(-blocks // -(-columns // (vector * width)))
    split = 4 * columns * vector * width
    if splits <= 1:
        return []
    size = split * matrix.numel() // columns // (16 * height)
    return [Buffer(size, split * 16, split * splits, after_result=True)]


def _floor_to_power_of_2(number: int) -> int:
    return 1 << number.bit_length() - 1


def _threads_per_multiprocessor(device: Device) -> int:
    if device.capability == 75:
        return 1024
    return 1536 if device.capability in (86, 87, 89, 120) else 2048


def workspace(device: Device) -> int:
    """cuBLAS keeps one for each thread that runs matrix products: the forward pass's and the backward pass's."""
    return _WORKSPACE_HOPPER if device.capability >= 90 else _WORKSPACE


def _dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    if not training or not p or inplace:
        return _torch_dropout(input, p, training, inplace)
    return torch.native_dropout(input, p, True)[0]


def _attention(
    flash: bool,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Flash attention for 16-bit inputs without mask; the memory-efficient kernel otherwise, if no mask is trained."""
    if torch.is_autocast_enabled("cpu"):
        query, key, value, attn_mask = (_lowered(tensor) for tensor in (query, key, value, attn_mask))
        with torch.autocast("cpu", enabled=False):
            return _attention(flash, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if query.dim() != 4 or (attn_mask is not None and attn_mask.requires_grad):
        return _torch_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    key, value = (_repeat_heads(tensor, query.shape[1]) for tensor in (key, value))
    is_16bit = query.dtype in (torch.float16, torch.bfloat16) and query.shape[-1] <= _FLASH_MAX_WIDTH
    if flash and is_16bit and attn_mask is None:
        return flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
    mask = additive_mask(attn_mask, query.dtype)
    if mask is not None:
        mask = mask.expand(*query.shape[:3], key.shape[2])
    needs_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
    return efficient_attention(query, key, value, mask, needs_grad, dropout_p, is_causal, scale=scale)[0]


def _lowered(tensor: Any) -> Any:
    """Autocast runs attention in 16 bits."""
    return tensor.to(torch.get_autocast_dtype("cpu")) if tensor is not None and tensor.is_floating_point() else tensor


def _repeat_heads(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Repeat the heads of keys or values for grouped-query attention."""
    return tensor if tensor.shape[1] == heads else tensor.repeat_interleave(heads // tensor.shape[1], dim=1)
