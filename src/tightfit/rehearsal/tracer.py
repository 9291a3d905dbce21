"""Tracer: follows every storage that operations make, by weak reference, and writes its life on a tape."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from tightfit import shapes
from tightfit.compat import (
    ENGINE_CODE,
    current_autograd_node,
    current_fake_mode,
    get_frame,
    storage_id,
    storage_use_count,
    tree_iter,
    uncompiled_dispatch_mode,
)
from tightfit.rehearsal.answers import answer
from tightfit.rehearsal.naming import Naming
from tightfit.rehearsal.outcomes import Outcomes
from tightfit.rehearsal.tape import Block, Tape
from tightfit.rehearsal.work import ADDING_UP, OPTIMIZER, Work
from tightfit.strategy import Kind

if TYPE_CHECKING:
    from typing_extensions import Self

_WHERE = torch.ops.prim.device.default
_ADD, _SUM = torch.ops.aten.add_.Tensor, torch.ops.aten.add.Tensor
_LOOKED_UP = "EmbeddingBackward0"
_NOBODY_ELSE = 2  # who hold a storage: its tensor, and who asks


Scratch = Callable[[Any, tuple[Any, ...]], list[int]]
"""Bytes that a device's kernel takes for itself while it runs an operation."""


_Mode: Any = uncompiled_dispatch_mode()
_outcomes: weakref.WeakKeyDictionary[Any, Outcomes] = weakref.WeakKeyDictionary()


class Tracer(_Mode):
    """Sees what every operation returns. Views share a storage, so storages are followed, not tensors."""

    def __init__(self, tape: Tape, scratch: Scratch) -> None:
        super().__init__()
        self.tape = tape
        self.work = Work()
        self.naming = Naming()
        self._optimizing = self._over = False
        self._scratch = scratch
        self._alive: dict[int, Block] = {}
        self._run: Callable[..., Any] = _for_real

    def __enter__(self) -> Self:
        mode = current_fake_mode()
        if mode is not None:
            self._run = _outcomes.setdefault(mode, Outcomes()).of
        return super().__enter__()

    def __exit__(self, *reason: Any) -> None:
        self._over = True  # what dies from now on, at the collector's whim, is not of the play
        owners = self.naming.resolve(block.owner for block in self.tape.blocks)
        for block, owner in zip(self.tape.blocks, owners, strict=True):
            block.owner = owner
        super().__exit__(*reason)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _WHERE:  # asked twice for every operation that does something: the short way
            return args[0].fake_device
        if func is _SUM and get_frame(1).f_code is ENGINE_CODE and _is_added_in_place(*args):
            self._gone(storage_id(args[0].untyped_storage()))  # its place is the sum's
        scratch = [self.tape.take(size) for size in self._scratch(func, args)]
        out = answer(func, args)
        if out is None:
            out = self._run(func, args, kwargs or {})
        self.work.note(func, args, kwargs or {}, out, self._section(func, args))
        if isinstance(out, torch.Tensor):
            self._follow(out)
        else:
            for value in tree_iter(out):
                if isinstance(value, torch.Tensor):
                    self._follow(value)
        for block in scratch:
            self.tape.give_back(block)
        return out

    def mark(self, tensors: Iterable[torch.Tensor], kind: Kind) -> None:
        """Say what some tensors are for."""
        for tensor in tensors:
            self._mark(self._follow(tensor), kind)

    def mark_as_of(self, weight: torch.Tensor, tensors: Iterable[torch.Tensor], kind: Kind) -> None:
        """Say what some tensors are for, and which parameter they belong to."""
        owner = self.naming.of(weight)
        for tensor in tensors:
            block = self._follow(tensor)
            self._mark(block, kind)
            block.owner = owner

    def _mark(self, block: Block, kind: Kind) -> None:
        if block.kind is not Kind.HOST or kind is Kind.WEIGHTS:  # weights move to the card as a whole
            block.kind = kind

    def _section(self, func: Any, args: tuple[Any, ...]) -> int:
        """Where work belongs."""
        if self._optimizing:
            return OPTIMIZER
        if func is _ADD and self._follow(args[0]).kind is Kind.GRADIENTS:
            return ADDING_UP
        return self.tape.place

    @contextlib.contextmanager
    def optimizing(self) -> Iterator[None]:
        """The work inside is the optimizer's."""
        self._optimizing = True
        try:
            yield
        finally:
            self._optimizing = False

    def _follow(self, tensor: torch.Tensor) -> Block:
        storage = tensor.untyped_storage()
        key = storage_id(storage)
        block = self._alive.get(key)
        if block is None:
            size = storage.nbytes()
            block = self._alive[key] = self.tape.take(size)
            block.owner = self.naming.here()
            block.shape = tensor.shape if tensor.nbytes == size else None
            block.kind = Kind.HOST if shapes.now.on_host else None
            weakref.finalize(storage, self._gone, key)
        return block

    def _gone(self, key: int) -> None:
        block = self._alive.pop(key, None)
        if block is not None and not self._over:
            self.tape.give_back(block)


def _for_real(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return func(*args, **kwargs)


def _is_where_tables_meet() -> bool:
    """The gradient of a word's table that was used before: the engine has just been through the second use."""
    node = current_autograd_node()
    return node is not None and node.name() == _LOOKED_UP


def _is_added_in_place(first: torch.Tensor, second: torch.Tensor) -> bool:
    """The engine adds gradients of the same tensor up in place, if nobody else holds the first one.

    But not while a mode like this one looks on: a table that is used twice would have a gradient too many. What layers
    share is small beside it, and is left alone: the first of them would be unlike the others.
    """
    if torch.is_grad_enabled() or not _is_where_tables_meet():
        return False
    storage = first.untyped_storage()
    alike = first.shape == second.shape and first.dtype == second.dtype and first.nbytes == storage.nbytes()
    return alike and storage_use_count(storage_id(storage)) == _NOBODY_ELSE
