"""In-place accumulation of weight gradients over the chunks of a layer.

autograd computes a weight gradient for every chunk and adds it to the one before: each time it
allocates, writes, reads and frees memory as large as the weight. Here the product of a later chunk is added in place,
and autograd receives the sum with the last chunk.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from tightfit.compat import current_graph_task_id
from tightfit.ops.buffer_pool import pooled_or_none


class WeightGradSum:
    """The gradient of one weight, summed over the chunks of a batch in the backward pass."""

    def __init__(self, chunks: int) -> None:
        self.chunks, self.calls, self.seen = chunks, 0, 0
        self._total: torch.Tensor | None = None

    def count_forward(self) -> None:
        """Count a call in the forward pass; calls in the backward pass are recomputation and get no gradient."""
        if current_graph_task_id() == -1:
            self.calls += 1

    def add(self, gradient: torch.Tensor, states: torch.Tensor) -> torch.Tensor | None:
        """Return the summed gradient after the last chunk, None before it.

        If the weight is used more than once per chunk, autograd accumulates instead.
        """
        if self.calls != self.chunks:
            return gradient.T @ states
        self.seen += 1
        if self._total is None:
            self._total = gradient.T @ states
        else:
            torch.addmm(self._total, gradient.T, states, out=self._total)
        return self._flush() if self.seen == self.chunks else None

    def _flush(self) -> torch.Tensor | None:
        total, self._total, self.seen = self._total, None, 0
        return total


def accumulate_in_place(modules: Iterable[nn.Module]) -> list[AccumulatingLinear]:
    """Make the linear layers in these modules accumulate their weight gradients in place."""
    linears = {part for module in modules for part in module.modules() if type(part) is nn.Linear}
    found = []
    for linear in linears:
        if isinstance(getattr(linear.forward, "__self__", None), nn.Linear):  # not replaced by another library
            accumulating = AccumulatingLinear(linear)
            linear.forward = accumulating
            found.append(accumulating)
    return found


class AccumulatingLinear:
    """The forward of a linear layer whose weight gradient is summed over chunks."""

    def __init__(self, linear: nn.Linear) -> None:
        self.linear, self.sum = linear, WeightGradSum(1)

    def start_batch(self, chunks: int) -> None:
        """Start a new sum for a batch of this many chunks."""
        self.sum = WeightGradSum(chunks)

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        weight, bias = self.linear.weight, self.linear.bias
        if self.sum.chunks == 1 or torch.is_autocast_enabled(states.device.type) or not _need_grad(states, weight):
            return nn.functional.linear(states, weight, bias)
        self.sum.count_forward()
        saved: list[Any] = []
        states = _SaveInputs.apply(states, weight, saved)
        out: torch.Tensor = _Linear.apply(states, weight, bias, self.sum, saved[0])
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
        ctx: Any, states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, sum: WeightGradSum, saved: Any
    ) -> torch.Tensor:
        ctx.sum, ctx.saved = sum, saved
        pooled = pooled_or_none((*states.shape[:-1], len(weight)), states)
        if pooled is None:
            return nn.functional.linear(states, weight, bias)
        flat, out = states.flatten(0, -2), pooled.flatten(0, -2)
        torch.mm(flat, weight.T, out=out) if bias is None else torch.addmm(bias, flat, weight.T, out=out)
        return pooled

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        states, weight = ctx.saved.saved_tensors
        needed = ctx.needs_input_grad
        flat = gradient.flatten(0, -2)
        grad_states = _grad_input(flat, weight, states) if needed[0] else None
        grad_weight = ctx.sum.add(flat, states.flatten(0, -2)) if needed[1] else None
        return grad_states, grad_weight, flat.sum(0) if needed[2] else None, None, None


def _grad_input(gradient: torch.Tensor, weight: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The gradient of a linear layer's input."""
    pooled = pooled_or_none(like.shape, like)
    if pooled is None:
        return (gradient @ weight).view(like.shape)
    torch.mm(gradient, weight, out=pooled.flatten(0, -2))
    return pooled
