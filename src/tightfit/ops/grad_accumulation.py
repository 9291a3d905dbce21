"""In-place accumulation of weight gradients over the chunks of a layer, also where its products are in bf16.

autograd computes a weight gradient for every chunk and adds it to the one before: each time it
allocates, writes, reads and frees memory as large as the weight. Here the product of a later chunk is added in place,
and autograd receives the sum with the last chunk. A gradient that is computed in bf16 is added in fp32, a few rows at a
time, without a copy of it in bf16.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from tightfit.compat import current_graph_task_id
from tightfit.ops.buffer_pool import pooled_or_none
from tightfit.ops.fake import representative

_TILE = 1 << 18  # elements of a gradient that stay in the cache


class NarrowWeight:
    """A copy of a weight in bf16, kept as long as the graph of a micro-batch holds it."""

    def __init__(self) -> None:
        self._copy: weakref.ref[torch.Tensor] | None = None

    def of(self, weight: torch.Tensor) -> torch.Tensor:
        """The copy of this weight."""
        copy = self._copy() if self._copy is not None else None
        if copy is None:
            copy = weight.detach().to(torch.bfloat16)
            self._copy = weakref.ref(copy)
        return copy


class WeightGradSum:
    """The gradient of one weight, summed over the chunks of a batch in the backward pass."""

    def __init__(self, chunks: int) -> None:
        self.chunks, self.calls, self.seen = chunks, 0, 0
        self._total: torch.Tensor | None = None
        self._factor: torch.Tensor | None = None

    def count_forward(self, factor: torch.Tensor) -> None:
        """Count a call in the forward pass; calls in the backward pass are recomputation and get no gradient.

        The factor, which may be a copy of the weight, is kept for the other chunks of a pass.
        """
        is_forward = current_graph_task_id() == -1
        self.calls += is_forward
        self._factor = factor if self.chunks > 1 and not (is_forward and self.calls == self.chunks) else None

    def add(self, gradient: torch.Tensor, states: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
        """Return the summed gradient in the weight's dtype after the last chunk, None before it.

        If the weight is used more than once per chunk, autograd accumulates instead.
        """
        if self.calls != self.chunks:
            return _add_product(None, gradient.T, states, dtype)
        self.seen += 1
        self._total = _add_product(self._total, gradient.T, states, dtype)
        return self._flush() if self.seen == self.chunks else None

    def _flush(self) -> torch.Tensor | None:
        total, self._total, self._factor, self.seen = self._total, None, None, 0
        return total


def _add_product(
    total: torch.Tensor | None, left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """`total` plus left @ right, in place; a new tensor without `total`."""
    if left.dtype is dtype:
        return left @ right if total is None else torch.addmm(total, left, right, out=total)
    out = left.new_empty((len(left), right.shape[1]), dtype=dtype) if total is None else total
    rows = max(1, min(len(left), _TILE // right.shape[1]))
    product, wide = left.new_empty((rows, right.shape[1])), None
    tiles = zip(left.split(rows), out.split(rows), strict=True)
    for tile, tile_out in representative(tiles, len(left) / rows, like=left):
        torch.mm(tile, right, out=product[: len(tile)])
        if total is None:
            tile_out.copy_(product[: len(tile)])
            continue
        wide = product.new_empty(product.shape, dtype=dtype) if wide is None else wide
        tile_out.add_(wide[: len(tile)].copy_(product[: len(tile)]))
    return out


def accumulate_in_place(modules: Iterable[nn.Module]) -> list[AccumulatingLinear]:
    """Make the linear layers in these modules accumulate their weight gradients in place."""
    linears = {part for module in modules for part in module.modules() if type(part) is nn.Linear}
    found = []
    for linear in linears:
        if isinstance(getattr(linear.forward, "__self__", None), nn.Linear):  # not replaced by another library
            linear.forward = AccumulatingLinear(linear)
        if isinstance(linear.forward, AccumulatingLinear):
            found.append(linear.forward)
    return found


class AccumulatingLinear:
    """The forward of a linear layer whose weight gradient is summed over chunks."""

    def __init__(self, linear: nn.Linear) -> None:
        self.linear, self.sum = linear, WeightGradSum(1)
        self.narrow: NarrowWeight | None = None
        """The weight for products in bf16 under autocast."""

    def start_batch(self, chunks: int) -> None:
        """Start a new sum for a batch of this many chunks."""
        self.sum = WeightGradSum(chunks)

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        weight, bias = self.linear.weight, self.linear.bias
        is_autocast = torch.is_autocast_enabled(states.device.type)
        if is_autocast and self.narrow is not None:
            return self._in_bf16(states.to(torch.bfloat16), self.narrow)
        if self.sum.chunks == 1 or is_autocast or not _need_grad(states, weight):
            return nn.functional.linear(states, weight, bias)
        return self._accumulating(states, weight)

    def _in_bf16(self, states: torch.Tensor, narrow: NarrowWeight) -> torch.Tensor:
        weight = self.linear.weight
        if _need_grad(states, weight):
            return self._accumulating(states, narrow.of(weight))
        is_trained = torch.is_grad_enabled() and weight.requires_grad
        return nn.functional.linear(states, weight if is_trained else narrow.of(weight), self.linear.bias)

    def _accumulating(self, states: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        """The product with the weight or with its copy, the factor."""
        self.sum.count_forward(factor)
        saved: list[Any] = []
        states = _SaveInputs.apply(states, factor, saved)
        linear = self.linear
        out: torch.Tensor = _Linear.apply(states, linear.weight, linear.bias, factor.detach(), self.sum, saved[0])
        return out


def _need_grad(states: torch.Tensor, weight: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and states.requires_grad and weight.requires_grad


class _SaveInputs(torch.autograd.Function):
    """Saves what the product's gradients need before the product is computed.

    torch saves a function's tensors after its forward, and recomputation stops after the last saved tensor. Saved by
    the product itself, the last product of a BERT layer would be recomputed for nothing: a third of its arithmetic.
    """

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, weight: torch.Tensor, saved: list[Any]) -> torch.Tensor:
        ctx.save_for_backward(states, weight)
        saved.append(ctx)
        return states.view_as(states)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return gradient, None, None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        factor: torch.Tensor,
        sum: WeightGradSum,
        saved: Any,
    ) -> torch.Tensor:
        ctx.sum, ctx.saved, ctx.dtype = sum, saved, weight.dtype
        bias = None if bias is None else bias.to(factor.dtype)
        pooled = pooled_or_none((*states.shape[:-1], len(factor)), states)
        if pooled is None:
            return nn.functional.linear(states, factor, bias)
        flat, out = states.flatten(0, -2), pooled.flatten(0, -2)
        torch.mm(flat, factor.T, out=out) if bias is None else torch.addmm(bias, flat, factor.T, out=out)
        return pooled

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        states, factor = ctx.saved.saved_tensors
        needed = ctx.needs_input_grad
        flat = gradient.flatten(0, -2)
        grad_states = _grad_input(flat, factor, states) if needed[0] else None
        grad_weight = ctx.sum.add(flat, states.flatten(0, -2), ctx.dtype) if needed[1] else None
        return grad_states, grad_weight, flat.sum(0) if needed[2] else None, *[None] * 3


def _grad_input(gradient: torch.Tensor, weight: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The gradient of a linear layer's input."""
    pooled = pooled_or_none(like.shape, like)
    if pooled is None:
        return (gradient @ weight).view(like.shape)
    torch.mm(gradient, weight, out=pooled.flatten(0, -2))
    return pooled
