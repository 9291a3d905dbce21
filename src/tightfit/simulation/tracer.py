"""Tracer: a dispatch mode that records every storage that ops allocate and free, and the ops themselves."""

from __future__ import annotations

import bisect
import contextlib
import math
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from tightfit.compat import (
    ENGINE_CODE,
    current_autograd_node,
    current_fake_mode,
    get_frame,
    next_sequence_number,
    reference_count_of,
    sequence_number_of,
    storage_id,
    storage_use_count,
    tree_iter,
    uncompiled_dispatch_mode,
)
from tightfit.ops import fake
from tightfit.simulation.fake_op_cache import FakeOpCache
from tightfit.simulation.kernels.cpu import MATMULS
from tightfit.simulation.known_values import KnownValues, Unknowns
from tightfit.simulation.op_counts import GRAD_ACCUMULATION, OPTIMIZER, OpCounts
from tightfit.simulation.trace import Block, Scratch, Trace
from tightfit.strategies.base import MemoryKind

if TYPE_CHECKING:
    from typing_extensions import Self


# Owners of blocks. In a forward pass the owner is the module being called. In a backward pass no module is called, but
# autograd numbers the forward ops, and the sequence number of the current node identifies the module that ran the op.


_ACCUMULATE_GRAD = 1 << 63  # sequence numbers from here on belong to AccumulateGrad nodes, not to forward ops
_LAYER_INDEX = re.compile(r"(?<=\.)\d+(?=\.|$)")


class OwnerTracker:
    """Finds the module or parameter that a new block belongs to, by forward hooks and autograd sequence numbers."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._entered: list[str] = []
        self._numbers: list[int] = []
        self._named: list[str | None] = []
        """The module of every op from the sequence number at the same index in `_numbers` on."""
        self._thread = threading.get_ident()

    @contextlib.contextmanager
    def tracking(self) -> Iterator[None]:
        """Hook every module call in this thread, also those that are interrupted, as in gradient checkpointing."""
        hooks = (
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        )
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def register(self, model: torch.nn.Module) -> None:
        """Store the names of a model's modules, parameters and buffers."""
        self._names |= {id(module): name for name, module in model.named_modules()}
        self._names |= {id(weight): name for name, weight in [*model.named_parameters(), *model.named_buffers()]}

    def name_of(self, weight: torch.Tensor) -> str | None:
        """The name of a parameter or buffer."""
        return self._names.get(id(weight))

    def current(self) -> str | int | None:
        """The module being called, or the sequence number of the autograd node being run."""
        if self._entered:
            return self._entered[-1]
        node = current_autograd_node()
        return None if node is None else sequence_number_of(node)

    def resolve(self, owners: Iterable[str | int | None]) -> list[str | None]:
        """Replace sequence numbers by module names."""
        return [self._module_of(owner) if isinstance(owner, int) else owner for owner in owners]

    def _module_of(self, number: int) -> str | None:
        index = bisect.bisect_right(self._numbers, number) - 1
        return self._named[index] if index >= 0 and number < _ACCUMULATE_GRAD else None

    def _enter(self, module: torch.nn.Module, *_: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        name = self._names.get(id(module))
        self._entered.append(self._entered[-1] if name is None and self._entered else name or "")
        self._start_owner(self._entered[-1])

    def _leave(self, *_: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        self._entered.pop()
        self._start_owner(self._entered[-1] if self._entered else None)

    def _start_owner(self, name: str | None) -> None:
        self._numbers.append(next_sequence_number())
        self._named.append(name)


def wildcard_layer(name: str) -> str:
    """encoder.layer.3.output -> encoder.layer.*.output, to group the same module of all layers."""
    return _LAYER_INDEX.sub("*", name)


_DEVICE_OF = torch.ops.prim.device.default
_MASK_FIRST = torch.ops.aten.native_dropout.default
"""Allocates its results in the reverse order, which decides where a GPU's allocator puts them."""
_ADD_IN_PLACE, _ADD = torch.ops.aten.add_.Tensor, torch.ops.aten.add.Tensor
_EMBEDDING_BACKWARD = "EmbeddingBackward0"
_OWN_REFERENCES = 4  # to a gradient that autograd adds another one to: autograd's, those of the call, and Python's
_UNSHARED = 2  # references to a storage that only one tensor uses: the tensor's and ours


_Mode: Any = uncompiled_dispatch_mode()
_caches: weakref.WeakKeyDictionary[Any, FakeOpCache] = weakref.WeakKeyDictionary()


class Tracer(_Mode):
    """Records the results of all ops. Views share storage, so storages are tracked, by weak reference, not tensors."""

    def __init__(
        self, trace: Trace, scratch: Scratch, unknowns: Unknowns | None = None, workspace: int | None = None
    ) -> None:
        super().__init__()
        self.trace = trace
        self._workspace = workspace
        """Bytes that each thread which runs matrix products keeps from the first one on."""
        self._has_workspace = {False: workspace is None, True: workspace is None}
        self._unknowns = unknowns or Unknowns()
        self.op_counts = OpCounts()
        self.owners = OwnerTracker()
        self._optimizing = self._finished = False
        self._scratch = scratch
        self._alive: dict[int, Block] = {}
        self._run: Callable[..., Any] = _run_op

    def __enter__(self) -> Self:
        mode = current_fake_mode()
        if mode is not None:
            self._run = KnownValues(self._unknowns, _caches.setdefault(mode, FakeOpCache()).run).run
        return super().__enter__()

    def __exit__(self, *reason: Any) -> None:
        self._finished = True  # whatever the garbage collector frees from now on is not part of the trace
        owners = self.owners.resolve(block.owner for block in self.trace.blocks)
        for block, owner in zip(self.trace.blocks, owners, strict=True):
            block.owner = owner
        super().__exit__(*reason)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE_OF:  # called twice for every op that computes, so it takes a shortcut
            return args[0].fake_device
        replaced = None
        if func is _ADD and get_frame(1).f_code is ENGINE_CODE and _is_added_in_place(*args):
            replaced = self._alive.pop(storage_id(args[0].untyped_storage()), None)
        if func in MATMULS:
            self._use_workspace()
        buffers = self._scratch(func, args)
        scratch = [self.trace.alloc_buffer(buffer) for buffer in buffers if not buffer.after_result]
        out = self._run(func, args, kwargs or {})
        self.op_counts.record(func, args, kwargs or {}, out, self._section(func, args))
        if replaced is not None:
            self._follow(out.untyped_storage(), replaced)
        elif isinstance(out, torch.Tensor):
            self._track(out)
        else:
            for value in reversed(out) if func is _MASK_FIRST else tree_iter(out):
                if isinstance(value, torch.Tensor):
                    self._track(value)
        for buffer in buffers:
            if buffer.after_result:
                scratch.append(self.trace.alloc_buffer(buffer))
            if buffer.freed_first:
                self.trace.free(scratch.pop())
        for block in scratch:
            self.trace.free(block)
        return out

    def _use_workspace(self) -> None:
        """Backward passes run in a thread of their own."""
        is_backward = current_autograd_node() is not None
        if not self._has_workspace[is_backward]:
            self._has_workspace[is_backward] = True
            self.trace.alloc_workspace(self._workspace or 0)

    def mark(self, tensors: Iterable[torch.Tensor], kind: MemoryKind) -> None:
        """Set the memory kind of some tensors."""
        for tensor in tensors:
            self._mark(self._track(tensor), kind)

    def mark_as_of(self, weight: torch.Tensor, tensors: Iterable[torch.Tensor], kind: MemoryKind) -> None:
        """Set the memory kind of some tensors and the parameter they belong to."""
        owner = self.owners.name_of(weight)
        for tensor in tensors:
            block = self._track(tensor)
            self._mark(block, kind)
            block.owner = owner

    def _mark(self, block: Block, kind: MemoryKind) -> None:
        if block.kind is not MemoryKind.HOST or kind is MemoryKind.WEIGHTS:  # weights move to the GPU as a whole
            block.kind = kind

    def _section(self, func: Any, args: tuple[Any, ...]) -> int:
        """The section that an op is counted in."""
        if self._optimizing:
            return OPTIMIZER
        if func is _ADD_IN_PLACE and self._track(args[0]).kind is MemoryKind.GRADIENTS:
            return GRAD_ACCUMULATION
        return self.trace.current_section

    @contextlib.contextmanager
    def optimizing(self) -> Iterator[None]:
        """Ops inside are counted as the optimizer's."""
        self._optimizing = True
        try:
            yield
        finally:
            self._optimizing = False

    def _track(self, tensor: torch.Tensor) -> Block:
        storage = tensor.untyped_storage()
        key = storage_id(storage)
        block = self._alive.get(key)
        if block is None:
            size = storage.nbytes()
            block = self.trace.alloc(size)
            block.owner = self.owners.current()
            block.shape = tensor.shape if tensor.nbytes == size else None
            now = fake.context()
            block.kind = MemoryKind.HOST if now.on_host else None
            if now.most != math.inf:
                block.bounds = 0, size * now.most
            self._follow(storage, block)
        return block

    def _follow(self, storage: torch.UntypedStorage, block: Block) -> None:
        """The block is freed when the storage is."""
        key = storage_id(storage)
        self._alive[key] = block
        weakref.finalize(storage, self._freed, key)

    def _freed(self, key: int) -> None:
        block = self._alive.pop(key, None)
        if block is not None and not self._finished:
            self.trace.free(block)


def _run_op(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return func(*args, **kwargs)


def _is_added_in_place(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether autograd would accumulate this gradient in place, as it does if nothing else references the first one.

    It does not do so while a dispatch mode is active, so the sum would be one gradient too many. Weights that layers
    share are small in comparison and are left alone: otherwise the first layer's trace would differ from the others'.
    """
    if torch.is_grad_enabled() or not (first.dim() > 2 or _in_embedding_backward()):
        return False
    storage = first.untyped_storage()
    same_layout = first.shape == second.shape and first.dtype == second.dtype and first.nbytes == storage.nbytes()
    is_alone = reference_count_of(first) <= _OWN_REFERENCES and storage_use_count(storage_id(storage)) == _UNSHARED
    return same_layout and is_alone


def _in_embedding_backward() -> bool:
    """Whether autograd has just run the backward of an embedding, whose table may be used more than once."""
    node = current_autograd_node()
    return node is not None and node.name() == _EMBEDDING_BACKWARD
