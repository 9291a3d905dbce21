"""Quantized linear layers: a frozen weight matrix in 4 or 8 bits, by bitsandbytes, expanded while it is used.

The matrix exists in 16 bits only during its product, in the forward pass and again in the backward pass. There is
nothing to store for the backward pass: a frozen weight needs no gradient, and its quantized form stays in memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tightfit.compat import dequantize_nf4, quantize_int8, quantize_nf4
from tightfit.ops.fake import representative

_TILE = 1 << 20  # elements quantized at once: bitsandbytes allocates five fp32 tensors of that size
_BLOCK = 64  # elements that share a scale in NF4
_INT8_MAX = 127


class QuantizedLinear(nn.Module):
    """A linear layer whose weight is quantized; products are computed in `dtype`."""

    def __init__(self, linear: nn.Linear, bits: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.in_features, self.out_features, self.bits, self.dtype = (
            linear.in_features,
            linear.out_features,
            bits,
            dtype,
        )
        packed, scale = _quantize(linear.weight.detach(), bits)
        self.packed = nn.Parameter(packed, requires_grad=False)
        self.packed.elements = linear.weight.numel()
        self.scale = nn.Parameter(scale, requires_grad=False)
        self.scale.elements = 0
        self.bias = linear.bias

    @property
    def weight(self) -> torch.Tensor:
        """Without elements: models and adapters read only its format and device."""
        return torch.empty(0, dtype=self.dtype, device=self.packed.device)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = _Product.apply(inputs.to(self.dtype), self)
        return product if self.bias is None else product + self.bias.to(self.dtype)

    def expanded(self) -> torch.Tensor:
        """The weight matrix in 16 bits."""
        if self.bits == 8:
            return self.packed.to(self.dtype).mul_((self.scale / _INT8_MAX).to(self.dtype)[:, None])
        return dequantize_nf4(self.packed, self.scale, _BLOCK, (self.out_features, self.in_features), self.dtype)


class _Product(torch.autograd.Function):
    """The product with a quantized matrix, which is expanded again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, layer: QuantizedLinear) -> torch.Tensor:
        ctx.layer = layer
        return F.linear(inputs, layer.expanded())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (gradient,) = gradients
        return gradient @ ctx.layer.expanded(), None


def _quantize(weight: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The quantized elements and their scales, computed a few rows at a time."""
    quantize, packed, scale = _EMPTY[bits](weight)
    parts = max(1, weight.numel() // _TILE)
    while any(len(tensor) % parts for tensor in (weight, packed, scale)):  # equal parts, of whole blocks
        parts -= 1
    tiles = zip(*(tensor.split(len(tensor) // parts) for tensor in (weight, packed, scale)), strict=True)
    for rows, packed_rows, scale_rows in representative(tiles, parts, like=weight):
        for empty, found in zip((packed_rows, scale_rows), quantize(rows), strict=True):
            empty.copy_(found)
    return packed, scale


def _empty_nf4(weight: torch.Tensor) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """Two elements in a byte, and a scale for each block of elements."""
    packed = torch.empty(weight.numel() // 2, 1, dtype=torch.uint8)
    return partial(quantize_nf4, block=_BLOCK), packed, torch.empty(-(-weight.numel() // _BLOCK))


def _empty_int8(weight: torch.Tensor) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """A byte for each element, and a scale for each row."""
    return quantize_int8, torch.empty_like(weight, dtype=torch.int8), torch.empty(len(weight))


_EMPTY = {4: _empty_nf4, 8: _empty_int8}


def quantize_linear_layers(layers: Iterable[nn.Module], bits: int, dtype: torch.dtype) -> int:
    """Replace the frozen linear layers inside `layers`, one after the other; returns how many there were."""
    count = 0
    for parent in [module for layer in layers for module in layer.modules()]:
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and not child.weight.requires_grad and child.in_features % 2 == 0:
                setattr(parent, name, QuantizedLinear(child, bits, dtype))
                count += 1
    return count
