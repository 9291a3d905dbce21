"""Last norms: left by a layer to the one after it.

A layer of BERT ends with a norm. In the layer's second run that norm would be met again, and with it the product
before it, a third of the layer's arithmetic, though the norm's result is what the next layer began with. If the next
layer begins with the norm instead, a second run is over where the last product would begin. The same numbers in the
same order; what is kept between layers are the norm's inputs in place of its results.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from tightfit.compat import current_graph_task_id
from tightfit.ops.buffer_pool import pooled_or_none


class Missed(Exception):
    """A norm in the middle of a layer was taken for its last."""


class DeferredNorm:
    """The forward of a norm that may be the last thing that a layer does."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        self.norm, self.forward = norm, norm.forward
        self.is_left: bool | None = None  # not known before a layer has run
        self._passed: torch.Tensor | None = None
        norm.forward = self

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        if not self.norm.training or self.is_left is False:
            return self.forward(states)
        self._passed = states
        return states

    def look(self, out: Any) -> Any:
        """At what a layer hands on, the first time: is it what came to the norm, and nothing else?

        Else the norm stays where it is, and is made up for; Missed is raised where it is too late for that.
        """
        passed, self._passed = self._passed, None
        if self.is_left is not None:
            return out
        self.is_left = out is passed
        if isinstance(out, tuple) and out[0] is passed:
            return (self.forward(out[0]), *out[1:])
        if not self.is_left:
            raise Missed
        return out


class Handed:
    """The states that the last layer handed on, and the norm that it left to the next."""

    def __init__(self) -> None:
        self._states: weakref.ref[torch.Tensor] | None = None
        self._norm: DeferredNorm | None = None

    def on(self, states: Any, norm: DeferredNorm | None) -> None:
        """From a layer."""
        left = norm is not None and bool(norm.is_left)
        self._states, self._norm = (weakref.ref(states), norm) if left else (None, None)

    def to_next(self, states: torch.Tensor) -> DeferredNorm | None:
        """The norm that these states still want; ValueError if they are not what was handed on."""
        norm = self._norm
        if self._states is not None and self._states() is not states:
            raise ValueError("the model does something to its states between layers")
        self._states = self._norm = None
        return norm


def find_last_norm(layer: nn.Module) -> DeferredNorm | None:
    """The norm that comes last among what learns in a layer, if one does and nobody has changed it."""
    with_weights = [part for part in layer.modules() if next(part.parameters(recurse=False), None) is not None]
    for last in with_weights[-1:]:
        if type(last) is nn.LayerNorm and isinstance(getattr(last.forward, "__self__", None), nn.LayerNorm):
            return DeferredNorm(last)
    return None


# Sums: a weight's gradients of several pieces, added up where they are.
#
# autograd makes a gradient for every piece and then adds it to the one before: each time new memory as large as the
# weight, written, read again and given back. Here the product of a later piece is added in place, and the sum goes on
# when the last piece is through.


class Sum:
    """The gradient of one weight while the pieces of a batch come back."""

    def __init__(self, chunks: int) -> None:
        self.chunks, self.calls, self.seen = chunks, 0, 0
        self._room: torch.Tensor | None = None

    def called(self) -> None:
        """On the way there. In the backward pass it is a second run, whose graph nobody follows."""
        if current_graph_task_id() == -1:
            self.calls += 1

    def add(self, gradient: torch.Tensor, states: torch.Tensor) -> torch.Tensor | None:
        """What is to be handed on: nothing until the last piece. A weight used otherwise is left to autograd."""
        if self.calls != self.chunks:
            return gradient.T @ states
        self.seen += 1
        if self._room is None:
            self._room = gradient.T @ states
        else:
            torch.addmm(self._room, gradient.T, states, out=self._room)
        return self._hand_on() if self.seen == self.chunks else None

    def _hand_on(self) -> torch.Tensor | None:
        whole, self._room, self.seen = self._room, None, 0
        return whole


def accumulate_in_place(modules: Iterable[nn.Module]) -> list[AccumulatingLinear]:
    """Let the linear layers in these modules add up their weights' gradients."""
    linears = {part for module in modules for part in module.modules() if type(part) is nn.Linear}
    found = []
    for linear in linears:
        if isinstance(getattr(linear.forward, "__self__", None), nn.Linear):  # nobody else has changed it
            summed = AccumulatingLinear(linear)
            linear.forward = summed
            found.append(summed)
    return found


class AccumulatingLinear:
    """The forward of a linear layer."""

    def __init__(self, linear: nn.Linear) -> None:
        self.linear, self.sum = linear, Sum(1)

    def begin(self, chunks: int) -> None:
        """A batch comes, in so many pieces."""
        self.sum = Sum(chunks)

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        weight, bias = self.linear.weight, self.linear.bias
        if self.sum.chunks == 1 or torch.is_autocast_enabled(states.device.type) or not _both_learn(states, weight):
            return nn.functional.linear(states, weight, bias)
        self.sum.called()
        kept: list[Any] = []
        states = _Keep.apply(states, weight, kept)
        out: torch.Tensor = _Linear.apply(states, weight, bias, self.sum, kept[0])
        return out


def _both_learn(states: torch.Tensor, weight: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and states.requires_grad and weight.requires_grad


class _Keep(torch.autograd.Function):
    """Keeps what the product's gradients need, before there is a product.

    torch keeps what a function asks for when it is done. A layer's second run ends with the last thing that is kept, so
    a last product would be computed for nothing: a third of a BERT layer's arithmetic.
    """

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, weight: torch.Tensor, kept: list[Any]) -> torch.Tensor:
        ctx.save_for_backward(states, weight)
        kept.append(ctx)
        return states.view_as(states)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return gradient, None, None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, sum: Sum, kept: Any
    ) -> torch.Tensor:
        ctx.sum, ctx.kept = sum, kept
        room = pooled_or_none((*states.shape[:-1], len(weight)), states)
        if room is None:
            return nn.functional.linear(states, weight, bias)
        flat, out = states.flatten(0, -2), room.flatten(0, -2)
        torch.mm(flat, weight.T, out=out) if bias is None else torch.addmm(bias, flat, weight.T, out=out)
        return room

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        states, weight = ctx.kept.saved_tensors
        wanted = ctx.needs_input_grad
        flat = gradient.flatten(0, -2)
        to_states = _times(flat, weight, states) if wanted[0] else None
        to_weight = ctx.sum.add(flat, states.flatten(0, -2)) if wanted[1] else None
        return to_states, to_weight, flat.sum(0) if wanted[2] else None, None, None


def _times(gradient: torch.Tensor, weight: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The gradient of what came in."""
    room = pooled_or_none(like.shape, like)
    if room is None:
        return (gradient @ weight).view(like.shape)
    torch.mm(gradient, weight, out=room.flatten(0, -2))
    return room
