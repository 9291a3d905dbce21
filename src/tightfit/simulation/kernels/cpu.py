"""CPU kernels: attention without dropout is fused; bf16 matmuls and 8-bit optimizers use fp32 buffers."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch

from tightfit.compat import flash_attention_for_cpu
from tightfit.simulation.patches import replaced
from tightfit.simulation.trace import Buffer

MATMULS = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default}
_PRODUCTS = MATMULS | {torch.ops.aten.mm.out, torch.ops.aten.addmm.out, torch.ops.aten.bmm.out}
# fp32 tensors of a parameter's size that bitsandbytes allocates: the moments, the gradient, the variance and its root.
_FP32_COPIES = {"bitsandbytes::optimizer_update_8bit_blockwise": 5, "bitsandbytes::optimizer_update_32bit": 3}
_torch_attention = torch.nn.functional.scaled_dot_product_attention


@contextlib.contextmanager
def kernels() -> Iterator[None]:
    """Use fused attention, where torch would choose the math kernel for fake tensors."""
    with replaced(torch.nn.functional, "scaled_dot_product_attention", _attention):
        yield


def scratch(func: Any, args: tuple[Any, ...], *, bf16_products: bool) -> list[Buffer]:
    """A CPU without bf16 instructions multiplies into fp32 and rounds afterwards; 8-bit state is expanded to fp32."""
    if copies := _FP32_COPIES.get(func.name()):
        return [Buffer(4 * args[1].numel())] * copies
    if func not in _PRODUCTS or args[-1].dtype != torch.bfloat16 or bf16_products:
        return []
    left, right = args[-2:]
    return [Buffer(4 * left.numel() // left.shape[-1] * right.shape[-1])]


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
    fusible = (
        query.dim() == 4 and query.shape[-1] == key.shape[-1] == value.shape[-1] and query.shape[1] == key.shape[1]
    )
    trainable_mask = attn_mask is not None and attn_mask.requires_grad  # T5's position bias
    if dropout_p or trainable_mask or not fusible:
        return _torch_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **rest)
    mask = additive_mask(attn_mask, query.dtype)
    out = flash_attention_for_cpu(query, key, value, 0.0, is_causal, attn_mask=mask, scale=scale)[0]
    return out  # noqa: RET504, the mask is freed last, as in torch


def additive_mask(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """A boolean mask is converted to an additive one, in memory of its own."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    visible, hidden = (torch.scalar_tensor(value, dtype=dtype) for value in (0.0, -math.inf))
    return torch.where(mask, visible, hidden)
