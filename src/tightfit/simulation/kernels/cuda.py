"""CUDA kernels: dropout with a one-byte mask, fused attention, and the ops that autocast keeps in fp32.

The functions are patched, not intercepted by a mode: a mode is not active while checkpointed layers are recomputed.
They are patched also where torch has CUDA, so that an estimate does not depend on the machine that made it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any

import torch

from tightfit.compat import efficient_attention, flash_attention
from tightfit.device import Device
from tightfit.simulation.kernels.cpu import MATMULS, additive_mask
from tightfit.simulation.patches import replaced

_functions = torch.nn.functional
_torch_attention = _functions.scaled_dot_product_attention
_torch_dropout = _functions.dropout
_FLASH_CAPABILITY, _FLASH_MAX_WIDTH = 80, 256
_WORKSPACE, _WORKSPACE_HOPPER = 8320 << 10, 32 << 20  # torch's defaults: 2 x 4096 + 8 x 16 KiB; 32 MiB


@contextlib.contextmanager
def kernels(device: Device) -> Iterator[None]:
    """Dropout, attention and autocast behave as on a GPU."""
    fp32_ops = ("layer_norm", "softmax", "log_softmax", "cross_entropy", "nll_loss", "mse_loss")
    with contextlib.ExitStack() as patches:
        for name in fp32_ops:
            patches.enter_context(replaced(_functions, name, _in_fp32(getattr(_functions, name))))
        patches.enter_context(replaced(torch, "softmax", _in_fp32(torch.softmax)))
        patches.enter_context(replaced(_functions, "dropout", _dropout))
        attention = partial(_attention, device.capability >= _FLASH_CAPABILITY)
        patches.enter_context(replaced(_functions, "scaled_dot_product_attention", attention))
        yield


def scratch(func: Any, args: tuple[Any, ...]) -> list[int]:
    """cuBLAS needs contiguous matrices: an expanded one is copied first."""
    if func not in MATMULS:
        return []
    matrices = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.dim() >= 2]
    return [m.numel() * m.element_size() for m in matrices if 0 in m.stride()[-2:] and m.numel() > 1]


def workspaces(device: Device) -> list[int]:
    """cuBLAS keeps one workspace per thread that runs matmuls: the forward pass's and the backward pass's."""
    return [_WORKSPACE_HOPPER if device.capability >= 90 else _WORKSPACE] * 2


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


def _repeat_heads(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Repeat the heads of keys or values for grouped-query attention."""
    return tensor if tensor.shape[1] == heads else tensor.repeat_interleave(heads // tensor.shape[1], dim=1)


def _in_fp32(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """CUDA's autocast runs these in fp32; the CPU's does not, and fake tensors report the CPU as their device."""

    @wraps(function)
    def wrapped(input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not torch.is_autocast_enabled("cpu"):
            return function(input, *args, **kwargs)
        with torch.autocast("cpu", enabled=False):
            return function(input.float() if input.is_floating_point() else input, *args, **kwargs)

    return wrapped
