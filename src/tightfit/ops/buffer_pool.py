"""Buffer pool: memory for the tensors of one chunk, reused by the next.

Freed CPU memory is returned to the system immediately, and new memory is provided page by page, each filled with
zeros. A layer that runs its batch in chunks would allocate and free the same tensors for every chunk; the pool holds
them until the last chunk is done. A GPU needs no pool, since torch's caching allocator does the same.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator, Sequence

import torch

from tightfit.compat import current_graph_task_id, storage_id, storage_use_count
from tightfit.system.memory import MALLOC_THRESHOLD

MIN_BYTES = MALLOC_THRESHOLD  # the C library does not return smaller blocks to the system
_UNSHARED = 1  # use count of a storage that only the pool refers to
_MAX_WASTE = 2  # a block may be at most this many times larger than needed
_NO_BACKWARD = -1  # autograd numbers backward passes from 0


class BufferPool:
    """Blocks of memory for the chunks of a batch; unused on devices whose allocator caches freed memory."""

    def __init__(self, device: str = "cpu") -> None:
        self._needed = device == "cpu"
        self._blocks: list[torch.UntypedStorage] = []
        self._backward = _NO_BACKWARD
        self._growth = 1.0
        """How many times larger the largest chunk is than the current one."""

    def size_for(self, chunk: torch.Tensor, most_tokens: int) -> None:
        """Make new blocks large enough for the largest chunk while this one runs."""
        self._growth = max(1.0, most_tokens / (chunk.shape[0] * chunk.shape[1]))

    def empty(self, shape: Sequence[int], like: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """An uninitialized tensor in an unused block, or in a new one."""
        count, empty = math.prod(shape), like.new_empty(0, dtype=dtype)
        block = self._unused(count * empty.element_size())
        if block is None:
            block = empty.new_empty(math.ceil(count * self._growth)).untyped_storage()
            self._blocks.append(block)
        return empty.set_(block, 0, tuple(shape))

    def _unused(self, size: int) -> torch.UntypedStorage | None:
        most = _MAX_WASTE * self._growth * size  # a small chunk uses blocks made for the largest
        for block in self._blocks:
            if size <= block.nbytes() <= most and _is_unused(block):
                return block
        return None

    def activate(self) -> None:
        """Allocate from this pool from now on, in this backward pass only: if it fails, nothing calls release()."""
        self._backward = _current_backward()
        _this_thread.active = self if self._needed else None

    @property
    def in_this_backward(self) -> bool:
        """Whether the pool was activated in the backward pass that runs now, not in an earlier one that failed."""
        return self._backward == _current_backward()

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Allocate from this pool inside, and release it in any case."""
        self.activate()
        try:
            yield
        finally:
            self.release()

    def release(self) -> None:
        """Stop allocating from this pool; each block is freed with its last tensor."""
        self._blocks.clear()
        _this_thread.active = None


class _Thread(threading.local):
    """The pool of each thread: a backward pass on a CPU runs in the thread that called it."""

    active: BufferPool | None = None


_this_thread = _Thread()


def pooled_or_none(shape: Sequence[int], like: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor | None:
    """An uninitialized tensor from the active pool; None if there is none or the tensor is small."""
    pool, item = _this_thread.active, (dtype or like.dtype).itemsize
    if pool is None or not pool.in_this_backward or math.prod(shape) * item < MIN_BYTES:
        return None
    return pool.empty(shape, like, dtype)


def pooled_empty(shape: Sequence[int], like: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """An uninitialized tensor, from the active pool if there is one."""
    pooled = pooled_or_none(shape, like, dtype)
    return like.new_empty(shape, dtype=dtype) if pooled is None else pooled


def release_active() -> None:
    """Release the pool that a failed pass left active."""
    if _this_thread.active is not None:
        _this_thread.active.release()


def _current_backward() -> int:
    return int(current_graph_task_id())


def _is_unused(block: torch.UntypedStorage) -> bool:
    return bool(storage_use_count(storage_id(block)) == _UNSHARED)
