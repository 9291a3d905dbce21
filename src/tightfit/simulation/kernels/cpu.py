"""A CPU's choice: attention without dropout runs in a fused kernel."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache
from typing import Any
from unittest import mock

import torch

from tightfit.compat import flash_attention_for_cpu, has_avx512_bf16

MATRIX_PRODUCTS = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default}
# bitsandbytes makes so many fp32 tensors of a parameter's size: the moments, the gradient, the spread and its root.
_ROOMS = {"bitsandbytes::optimizer_update_8bit_blockwise": 5, "bitsandbytes::optimizer_update_32bit": 3}
_plain_attention = torch.nn.functional.scaled_dot_product_attention


@contextlib.contextmanager
def kernels() -> Iterator[None]:
    """On fake tensors torch would take the plain attention."""
    with mock.patch.object(torch.nn.functional, "scaled_dot_product_attention", _attention):
        yield


def scratch(func: Any, args: tuple[Any, ...]) -> list[int]:
    """A CPU without instructions for bf16 multiplies into fp32 and rounds afterwards; 8 bits are written out in 32."""
    if func.namespace == "bitsandbytes":
        return [4 * args[1].numel()] * _ROOMS.get(func.name(), 0)
    if func not in MATRIX_PRODUCTS or args[-1].dtype != torch.bfloat16 or _multiplies_bf16():
        return []
    left, right = args[-2:]
    return [4 * left.numel() // left.shape[-1] * right.shape[-1]]


@cache
def _multiplies_bf16() -> bool:
    return "SVE" in torch.backends.cpu.get_cpu_capability() or has_avx512_bf16()


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    **rest: Any,
) -> torch.Tensor:
    alike = query.dim() == 4 and query.shape[-1] == key.shape[-1] == value.shape[-1] and query.shape[1] == key.shape[1]
    learnt_mask = attn_mask is not None and attn_mask.requires_grad  # T5's position bias
    if dropout_p or learnt_mask or not alike:
        return _plain_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **rest)
    out, _ = flash_attention_for_cpu(
        query, key, value, 0.0, is_causal, attn_mask=additive(attn_mask, query.dtype), scale=scale
    )
    return out


def additive(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """A mask of yes and no becomes one of numbers to add, in memory of its own."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask.logical_not(), 0.0)
