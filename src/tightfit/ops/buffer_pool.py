"""Rooms: memory for what one piece computes, used again by the next.

What is freed goes back to the system at once, and comes back from there page by page, each filled with zeros. Where a
batch goes through a layer in pieces, the same would be taken and given back for every piece. Here it is kept until the
last one is through. A card's allocator does the like by itself.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence

import torch

from tightfit.compat import current_graph_task_id, storage_id, storage_use_count
from tightfit.system import THRESHOLD

SMALLEST = THRESHOLD  # bytes; below, the C library keeps what is freed
_ONLY_WE = 1  # hold a storage that nobody uses
_FAR_TOO_LARGE = 2  # times what is wanted
_NO_PASS = -1  # back; autograd counts those from 0


class BufferPool:
    """Blocks of memory for the pieces of a batch; none for a device whose allocator keeps what is freed."""

    def __init__(self, device: str = "cpu") -> None:
        self._needed = device == "cpu"
        self._blocks: list[torch.UntypedStorage] = []
        self._pass = _NO_PASS
        self._growth = 1.0
        """How much more the largest piece takes than the one at hand."""

    def meet(self, chunk: torch.Tensor, most_tokens: int) -> None:
        """A piece comes: blocks that are made for it do for the largest too."""
        self._growth = max(1.0, most_tokens / (chunk.shape[0] * chunk.shape[1]))

    def empty(self, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        """A tensor without values: in a block that nobody uses, or in a new one."""
        count = math.prod(shape)
        block = self._unused(count * like.element_size())
        if block is None:
            block = like.new_empty(math.ceil(count * self._growth)).untyped_storage()
            self._blocks.append(block)
        return like.new_empty(0).set_(block, 0, tuple(shape))

    def _unused(self, size: int) -> torch.UntypedStorage | None:
        most = _FAR_TOO_LARGE * self._growth * size  # a small piece uses what was made for the largest
        for block in self._blocks:
            if size <= block.nbytes() <= most and _is_unused(block):
                return block
        return None

    def open(self) -> None:
        """From now on tensors are made here, as long as this pass goes on: if it fails nobody closes."""
        global _open
        self._pass = _pass_at_hand()
        _open = self if self._needed else None

    @property
    def is_of_this_pass(self) -> bool:
        """Not of one that failed."""
        return self._pass == _pass_at_hand()

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Open inside, whatever happens there."""
        self.open()
        try:
            yield
        finally:
            self.close()

    def close(self) -> None:
        """Blocks go with their last tensor."""
        global _open
        self._blocks.clear()
        _open = None


_open: BufferPool | None = None


def pooled_or_none(shape: Sequence[int], like: torch.Tensor) -> torch.Tensor | None:
    """A tensor without values in the room that is open; None if none is."""
    if _open is None or not _open.is_of_this_pass or math.prod(shape) * like.element_size() < SMALLEST:
        return None
    return _open.empty(shape, like)


def empty(shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    """A tensor without values, in a room if one is open."""
    room = pooled_or_none(shape, like)
    return like.new_empty(shape) if room is None else room


def leave() -> None:
    """Whatever was open, after something failed."""
    if _open is not None:
        _open.close()


def _pass_at_hand() -> int:
    return int(current_graph_task_id())


def _is_unused(block: torch.UntypedStorage) -> bool:
    return bool(storage_use_count(storage_id(block)) == _ONLY_WE)
