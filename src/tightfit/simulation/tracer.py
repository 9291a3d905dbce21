"""Answers: what code that looks at its data would find in a usual batch, where a rehearsal has no data to look at.

Some heads (T5, BART) read a text at its end token: they ask where it is, and whether every row has one. The
answer is that every row has exactly one, and that what is checked is in order.
"""

from __future__ import annotations

import bisect
import contextlib
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from tightfit.compat import (
    ENGINE_CODE,
    FakeTensor,
    current_autograd_node,
    current_fake_mode,
    get_frame,
    index_put_in_place,
    next_sequence_number,
    read_scalar,
    sequence_number_of,
    storage_id,
    storage_use_count,
    tree_iter,
    uncompiled_dispatch_mode,
)
from tightfit.ops import fake
from tightfit.simulation.fake_ops import FakeOpCache
from tightfit.simulation.op_counts import GRAD_ACCUMULATION, OPTIMIZER, OpCounts
from tightfit.simulation.trace import Block, Trace
from tightfit.strategies.base import MemoryKind

if TYPE_CHECKING:
    from typing_extensions import Self


_aten = torch.ops.aten


def answer(func: Any, args: tuple[Any, ...]) -> Any:
    """The usual outcome of an operation whose outcome depends on data; None where it does not."""
    reply = _REPLIES.get(func)
    if reply is None or not isinstance(args[0], FakeTensor):
        return None
    return reply(*args)


def _one_value(values: torch.Tensor, inverse: bool = False, counts: bool = False, dim: int | None = None) -> Any:
    """unique_consecutive: all rows agree."""
    return values.flatten()[:1].clone(), values.new_empty(values.shape), values.new_empty(1)


def _yes(value: torch.Tensor) -> bool | None:
    return True if value.dtype == torch.bool else None


def _one_of_each_row(values: torch.Tensor, indices: list[Any]) -> Any:
    return values[:, 0].clone() if _is_row_mask(indices) else None


def _put_back(values: torch.Tensor, indices: list[Any], *rest: Any) -> Any:
    return values if _is_row_mask(indices) else None


def _is_row_mask(indices: list[Any]) -> bool:
    return len(indices) == 1 and indices[0] is not None and indices[0].dtype == torch.bool and indices[0].dim() == 2


_REPLIES: dict[Any, Callable[..., Any]] = {
    _aten.unique_consecutive.default: _one_value,
    read_scalar: _yes,
    _aten.index.Tensor: _one_of_each_row,
    index_put_in_place: _put_back,
    _aten.index_put_.default: _put_back,
    _aten.index_put.default: _put_back,
}


# Naming: which module of a model a block of memory belongs to.
#
# In a forward pass it is the module that is being called. In a backward pass nothing is called, but torch numbers the
# operations that it will undo, and the number of the one it is undoing says in which module it was done.


_BEYOND = 1 << 63  # numbers of nodes that gather gradients, which belong to no operation
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


class OwnerTracker:
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


# Tracer: follows every storage that operations make, by weak reference, and writes its life on a tape.


_WHERE = torch.ops.prim.device.default
_ADD, _SUM = torch.ops.aten.add_.Tensor, torch.ops.aten.add.Tensor
_LOOKED_UP = "EmbeddingBackward0"
_NOBODY_ELSE = 2  # who hold a storage: its tensor, and who asks


Scratch = Callable[[Any, tuple[Any, ...]], list[int]]
"""Bytes that a device's kernel takes for itself while it runs an operation."""


_Mode: Any = uncompiled_dispatch_mode()
_outcomes: weakref.WeakKeyDictionary[Any, FakeOpCache] = weakref.WeakKeyDictionary()


class Tracer(_Mode):
    """Sees what every operation returns. Views share a storage, so storages are followed, not tensors."""

    def __init__(self, trace: Trace, scratch: Scratch) -> None:
        super().__init__()
        self.trace = trace
        self.work = OpCounts()
        self.naming = OwnerTracker()
        self._optimizing = self._over = False
        self._scratch = scratch
        self._alive: dict[int, Block] = {}
        self._run: Callable[..., Any] = _for_real

    def __enter__(self) -> Self:
        mode = current_fake_mode()
        if mode is not None:
            self._run = _outcomes.setdefault(mode, FakeOpCache()).of
        return super().__enter__()

    def __exit__(self, *reason: Any) -> None:
        self._over = True  # what dies from now on, at the collector's whim, is not of the play
        owners = self.naming.resolve(block.owner for block in self.trace.blocks)
        for block, owner in zip(self.trace.blocks, owners, strict=True):
            block.owner = owner
        super().__exit__(*reason)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _WHERE:  # asked twice for every operation that does something: the short way
            return args[0].fake_device
        if func is _SUM and get_frame(1).f_code is ENGINE_CODE and _is_added_in_place(*args):
            self._gone(storage_id(args[0].untyped_storage()))  # its place is the sum's
        scratch = [self.trace.take(size) for size in self._scratch(func, args)]
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
            self.trace.give_back(block)
        return out

    def mark(self, tensors: Iterable[torch.Tensor], kind: MemoryKind) -> None:
        """Say what some tensors are for."""
        for tensor in tensors:
            self._mark(self._follow(tensor), kind)

    def mark_as_of(self, weight: torch.Tensor, tensors: Iterable[torch.Tensor], kind: MemoryKind) -> None:
        """Say what some tensors are for, and which parameter they belong to."""
        owner = self.naming.of(weight)
        for tensor in tensors:
            block = self._follow(tensor)
            self._mark(block, kind)
            block.owner = owner

    def _mark(self, block: Block, kind: MemoryKind) -> None:
        if block.kind is not MemoryKind.HOST or kind is MemoryKind.WEIGHTS:  # weights move to the card as a whole
            block.kind = kind

    def _section(self, func: Any, args: tuple[Any, ...]) -> int:
        """Where work belongs."""
        if self._optimizing:
            return OPTIMIZER
        if func is _ADD and self._follow(args[0]).kind is MemoryKind.GRADIENTS:
            return GRAD_ACCUMULATION
        return self.trace.place

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
            block = self._alive[key] = self.trace.take(size)
            block.owner = self.naming.here()
            block.shape = tensor.shape if tensor.nbytes == size else None
            block.kind = MemoryKind.HOST if fake.now.on_host else None
            weakref.finalize(storage, self._gone, key)
        return block

    def _gone(self, key: int) -> None:
        block = self._alive.pop(key, None)
        if block is not None and not self._over:
            self.trace.give_back(block)


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
