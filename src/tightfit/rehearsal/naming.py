"""Naming: which module of a model a block of memory belongs to.

In a forward pass it is the module that is being called. In a backward pass nothing is called, but torch numbers the
operations that it will undo, and the number of the one it is undoing says in which module it was done.
"""

from __future__ import annotations

import bisect
import contextlib
import re
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from tightfit.compat import current_autograd_node, next_sequence_number, sequence_number_of

_BEYOND = 1 << 63  # numbers of nodes that gather gradients, which belong to no operation
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


class Naming:
    """Listens to the modules of one model while it is played."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._entered: list[str] = []
        self._numbers: list[int] = []
        self._named: list[str | None] = []
        """The module of every operation from the number beside it on."""
        self._thread = threading.get_ident()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Modules say when they are called, also where a call is broken off, as checkpointing does."""
        hooks = (
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        )
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def learn(self, model: torch.nn.Module) -> None:
        """The names of a model's modules and parameters."""
        self._names |= {id(module): name for name, module in model.named_modules()}
        self._names |= {id(weight): name for name, weight in [*model.named_parameters(), *model.named_buffers()]}

    def of(self, weight: torch.Tensor) -> str | None:
        """The name of a parameter or buffer."""
        return self._names.get(id(weight))

    def here(self) -> str | int | None:
        """The module that is at work, or the number of the operation that is being undone."""
        if self._entered:
            return self._entered[-1]
        node = current_autograd_node()
        return None if node is None else sequence_number_of(node)

    def resolve(self, owners: Iterable[str | int | None]) -> list[str | None]:
        """Modules for numbers."""
        return [self._module_of(owner) if isinstance(owner, int) else owner for owner in owners]

    def _module_of(self, number: int) -> str | None:
        place = bisect.bisect_right(self._numbers, number) - 1
        return self._named[place] if place >= 0 and number < _BEYOND else None

    def _enter(self, module: torch.nn.Module, *_: Any) -> None:
        name = self._names.get(id(module))
        self._entered.append(self._entered[-1] if name is None and self._entered else name or "")
        self._from_here_on(self._entered[-1])

    def _leave(self, *_: Any) -> None:
        self._entered.pop()
        self._from_here_on(self._entered[-1] if self._entered else None)

    def _from_here_on(self, name: str | None) -> None:
        if threading.get_ident() == self._thread:  # every thread counts for itself
            self._numbers.append(next_sequence_number())
            self._named.append(name)


def any_layer(name: str) -> str:
    """encoder.layer.3.output -> encoder.layer.*.output: what is said of one layer holds for its like."""
    return _NUMBER.sub("*", name)
