"""Deferred norm: the last norm of a layer is applied by the next layer.

A BERT layer ends with a norm. Recomputing the layer up to that norm would repeat the matrix product
before it, a third of the layer's arithmetic, although the norm's output is the input of the next layer. If the next
layer applies the norm instead, the recomputation stops before the last product. The same values are computed in the
same order; between layers the norm's inputs are saved in place of its outputs.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn


class NormNotLast(Exception):
    """The norm that was deferred is not the last operation of its layer."""


class HiddenStatesChanged(Exception):
    """The model changes the hidden states between its layers."""


class DeferredNorm:
    """The forward of a norm that may be the last operation of a layer."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        self.norm, self.forward = norm, norm.forward
        self.deferred: bool | None = None  # unknown before the layer has run
        self._input: torch.Tensor | None = None
        norm.forward = self

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        if not self.norm.training or self.deferred is False:
            return self.forward(states)
        self._input = states
        return states

    def check_output(self, out: Any) -> Any:
        """Defer the norm if the layer's first output is the norm's input and nothing else.

        Otherwise the norm stays in its layer and is applied to this output; where that is not possible, because the
        layer used the skipped norm's result, NormNotLast is raised and the layer runs again.
        """
        seen, self._input = self._input, None
        if self.deferred is not None:
            return out
        self.deferred = out is seen
        if isinstance(out, tuple) and out[0] is seen:
            return (self.forward(out[0]), *out[1:])
        if not self.deferred:
            raise NormNotLast
        return out


class PendingNorm:
    """The hidden states that the previous layer returned, and the norm that it deferred."""

    def __init__(self) -> None:
        self._states: weakref.ref[torch.Tensor] | None = None
        self._norm: DeferredNorm | None = None

    def put(self, states: Any, norm: DeferredNorm | None) -> None:
        """Store a layer's output and the norm it deferred."""
        deferred = norm is not None and bool(norm.deferred)
        self._states, self._norm = (weakref.ref(states), norm) if deferred else (None, None)

    def take(self, states: torch.Tensor) -> DeferredNorm | None:
        """The norm to apply to these states; HiddenStatesChanged if they are not the previous layer's output."""
        norm = self._norm
        if self._states is not None and self._states() is not states:
            raise HiddenStatesChanged
        self._states = self._norm = None
        return norm


def find_last_norm(layer: nn.Module) -> DeferredNorm | None:
    """The last module with parameters in a layer, if it is a LayerNorm whose forward was not replaced."""
    with_weights = [part for part in layer.modules() if next(part.parameters(recurse=False), None) is not None]
    for last in with_weights[-1:]:
        if type(last) is nn.LayerNorm and isinstance(getattr(last.forward, "__self__", None), nn.LayerNorm):
            return DeferredNorm(last)
    return None
