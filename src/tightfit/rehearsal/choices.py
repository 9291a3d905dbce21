"""Choices: what the device's own kernels would do where shapes without data make torch choose otherwise."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch


@contextlib.contextmanager
def kernels_of_a_cpu() -> Iterator[None]:
    """Attention without dropout runs in torch's fused CPU kernel; on fake tensors torch would take the plain one."""
    with mock.patch.object(torch.nn.functional, "scaled_dot_product_attention", _attention_on_a_cpu):
        yield


_plain_attention = torch.nn.functional.scaled_dot_product_attention


def _attention_on_a_cpu(
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
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(attn_mask.logical_not(), 0.0)
    out, _ = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, is_causal, attn_mask=attn_mask, scale=scale
    )
    return out
