"""Last norms: left by a layer to the one after it.

A layer of BERT ends with a norm. In the layer's second run that norm would be met again, and with it the product
before it, a third of the layer's arithmetic, though the norm's result is what the next layer began with. If the next
layer begins with the norm instead, a second run is over where the last product would begin. The same numbers in the
same order; what is kept between layers are the norm's inputs in place of its results.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn


class Missed(Exception):
    """A norm in the middle of a layer was taken for its last."""


class LastNorm:
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
        self._norm: LastNorm | None = None

    def on(self, states: Any, norm: LastNorm | None) -> None:
        """From a layer."""
        left = norm is not None and bool(norm.is_left)
        self._states, self._norm = (weakref.ref(states), norm) if left else (None, None)

    def to_next(self, states: torch.Tensor) -> LastNorm | None:
        """The norm that these states still want; ValueError if they are not what was handed on."""
        norm = self._norm
        if self._states is not None and self._states() is not states:
            raise ValueError("the model does something to its states between layers")
        self._states = self._norm = None
        return norm


def last_norm(layer: nn.Module) -> LastNorm | None:
    """The norm that comes last among what learns in a layer, if one does and nobody has changed it."""
    with_weights = [part for part in layer.modules() if next(part.parameters(recurse=False), None) is not None]
    for last in with_weights[-1:]:
        if type(last) is nn.LayerNorm and isinstance(getattr(last.forward, "__self__", None), nn.LayerNorm):
            return LastNorm(last)
    return None
