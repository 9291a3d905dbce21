"""A card's choices: dropout with a mask of one byte, fused attention, and which operations autocast keeps in 32 bits.

The functions are replaced, not intercepted by a mode: a mode is not active while checkpointed layers run again.
It is done so also where torch has CUDA, so that a bill does not depend on the machine it was made on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any
from unittest import mock

import torch

from tightfit.compat import efficient_attention, flash_attention
from tightfit.device import Device
from tightfit.simulation.kernels.cpu import MATRIX_PRODUCTS, additive

_functions = torch.nn.functional
_plain_attention = _functions.scaled_dot_product_attention
_plain_dropout = _functions.dropout
_FLASH_COMPUTE, _FLASH_WIDTH = 80, 256
_WORKSPACE, _WORKSPACE_HOPPER = 8320 << 10, 32 << 20  # torch's defaults: 2 x 4096 + 8 x 16 KiB; 32 MiB


@contextlib.contextmanager
def kernels(device: Device) -> Iterator[None]:
    """Dropout, attention and number formats as on a card."""
    in_32_bits = ("layer_norm", "softmax", "log_softmax", "cross_entropy", "nll_loss", "mse_loss")
    with contextlib.ExitStack() as patches:
        for name in in_32_bits:
            patches.enter_context(mock.patch.object(_functions, name, _in_32_bits(getattr(_functions, name))))
        patches.enter_context(mock.patch.object(torch, "softmax", _in_32_bits(torch.softmax)))
        patches.enter_context(mock.patch.object(_functions, "dropout", _dropout))
        attention = partial(_attention, device.compute >= _FLASH_COMPUTE)
        patches.enter_context(mock.patch.object(_functions, "scaled_dot_product_attention", attention))
        yield


def scratch(func: Any, args: tuple[Any, ...]) -> list[int]:
    """cuBLAS wants matrices in one piece: one that was expanded from a single number is written out first."""
    if func not in MATRIX_PRODUCTS:
        return []
    matrices = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.dim() >= 2]
    return [m.numel() * m.element_size() for m in matrices if 0 in m.stride()[-2:] and m.numel() > 1]


def workspaces(device: Device) -> list[int]:
    """cuBLAS keeps a workspace for each thread that multiplies: the forward pass's and the backward pass's."""
    return [_WORKSPACE_HOPPER if device.compute >= 90 else _WORKSPACE] * 2


def _dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    if not training or not p or inplace:
        return _plain_dropout(input, p, training, inplace)
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
    """Flash attention for 16 bits and no mask; the memory-efficient kernel for any other mask that is not learnt."""
    if query.dim() != 4 or (attn_mask is not None and attn_mask.requires_grad):
        return _plain_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    key, value = (_repeated(side, query.shape[1]) for side in (key, value))
    narrow = query.dtype in (torch.float16, torch.bfloat16) and query.shape[-1] <= _FLASH_WIDTH
    if flash and narrow and attn_mask is None:
        return flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
    mask = additive(attn_mask, query.dtype)
    if mask is not None:
        mask = mask.expand(*query.shape[:3], key.shape[2])
    kept = torch.is_grad_enabled() and any(side.requires_grad for side in (query, key, value))
    return efficient_attention(query, key, value, mask, kept, dropout_p, is_causal, scale=scale)[0]


def _repeated(side: torch.Tensor, heads: int) -> torch.Tensor:
    """Fewer keys than queries (grouped attention) are shared out."""
    return side if side.shape[1] == heads else side.repeat_interleave(heads // side.shape[1], dim=1)


def _in_32_bits(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """CUDA's autocast runs these in 32 bits; a CPU's does not, and the tensors here claim to be on a CPU."""

    @wraps(function)
    def wrapped(input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not torch.is_autocast_enabled("cpu"):
            return function(input, *args, **kwargs)
        with torch.autocast("cpu", enabled=False):
            return function(input.float() if input.is_floating_point() else input, *args, **kwargs)

    return wrapped
