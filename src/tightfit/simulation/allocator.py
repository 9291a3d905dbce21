"""Allocator models: the memory that a device's allocator holds while blocks are allocated and freed.

On a CPU, large blocks are mmapped pages that are returned when freed (see `tuned_malloc` in system/memory.py), and
small ones live in the heap. GPU memory goes through torch's caching allocator, which reserves segments and keeps them.
"""

from __future__ import annotations

import bisect
import os
from dataclasses import dataclass, field

import numpy as np

from tightfit.device import Device
from tightfit.simulation.scaling import Array
from tightfit.simulation.timeline import Timeline
from tightfit.system.memory import MALLOC_THRESHOLD

_KIB, _MIB = 1 << 10, 1 << 20
_PAGE = 4 * _KIB
_HEADER = 80  # bytes added to an mmapped block: glibc's header and torch's alignment


def reserved_over_time(device: Device, timeline: Timeline, sizes: Array) -> Array:
    """Bytes that the allocator has reserved on the device, at every tick."""
    if device.kind == "cuda":
        return _cuda_reserved(timeline, sizes, CachingAllocator(expandable=expandable_segments()))
    return _cpu_reserved(timeline, sizes)


def pinned_peak(timeline: Timeline, sizes: Array) -> int:
    """Peak bytes in host memory, as if all were pinned: torch rounds pinned blocks up to powers of two."""
    blocks = np.where(timeline.on_host & (sizes > 0), sizes, 0)
    rounded = np.where(blocks > 0, 2.0 ** np.ceil(np.log2(np.maximum(blocks, 1))), 0).astype(np.int64)
    return int(timeline.total(rounded).max())


def expandable_segments() -> bool:
    """Whether the environment enables torch's expandable segments."""
    settings = os.environ.get("PYTORCH_ALLOC_CONF", "") + os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
    return "expandable_segments:true" in settings.lower()


def _cpu_reserved(timeline: Timeline, sizes: Array) -> Array:
    paged = np.where(sizes >= MALLOC_THRESHOLD, -(-(sizes + _HEADER) // _PAGE) * _PAGE, sizes)
    return timeline.total(paged)


def _cuda_reserved(timeline: Timeline, sizes: Array, allocator: CachingAllocator) -> Array:
    indices = np.flatnonzero((sizes > 0) & ~timeline.on_host)
    frees = [(tick, 0, i) for i, tick in zip(indices.tolist(), timeline.free_ticks[indices].tolist(), strict=True)]
    allocs = [(tick, 1, i) for i, tick in zip(indices.tolist(), timeline.alloc_ticks[indices].tolist(), strict=True)]
    change = np.zeros(timeline.end + 2, dtype=np.int64)
    blocks: dict[int, MemoryBlock] = {}
    for tick, is_alloc, index in sorted(frees + allocs):
        before = allocator.reserved
        if is_alloc:
            blocks[index] = allocator.alloc(int(sizes[index]))
        else:
            allocator.free(blocks.pop(index))
        change[tick] += allocator.reserved - before
    return change.cumsum()


@dataclass(eq=False)
class MemoryBlock:
    """A part of a segment, allocated or free."""

    address: int
    size: int
    pool: Pool
    free: bool = False
    prev: MemoryBlock | None = None
    next: MemoryBlock | None = None


@dataclass(eq=False)
class Pool:
    """The blocks of one size class, small or large, and the free ones among them sorted by size."""

    segment: int
    """Minimum bytes of a segment."""
    min_remainder: int
    """A remainder up to this size is not split off."""
    free: list[tuple[int, int]] = field(default_factory=list)
    blocks: dict[int, MemoryBlock] = field(default_factory=dict)
    last: MemoryBlock | None = None
    """The last block of the expandable segment."""


class CachingAllocator:
    """torch's CUDA allocator: 512-byte granularity, segments of 2 MiB for small blocks, 20 MiB or more for large."""

    small_block, large_block = _MIB, 10 * _MIB

    def __init__(self, *, expandable: bool = False) -> None:
        self.reserved = 0
        self.allocated = 0
        self.expandable = expandable
        self._small = Pool(segment=2 * _MIB, min_remainder=511)
        self._large = Pool(segment=20 * _MIB, min_remainder=_MIB)
        self._address = 0

    def alloc(self, size: int) -> MemoryBlock:
        """Take the smallest free block that is large enough, or a new segment; the remainder is split off."""
        size = max(512, -(-size // 512) * 512)
        pool = self._small if size <= self.small_block else self._large
        found = bisect.bisect_left(pool.free, (size, -1))
        if found < len(pool.free):
            block = pool.blocks[pool.free.pop(found)[1]]
        else:
            block = self._grow(pool, size) if self.expandable else self._segment(pool, size)
        block.free = False
        self._split(pool, block, size)
        self.allocated += block.size
        return block

    def free(self, block: MemoryBlock) -> None:
        """Free a block and merge it with its free neighbours."""
        self.allocated -= block.size
        pool = block.pool
        for neighbour in (block.prev, block.next):
            if neighbour is not None and neighbour.free:
                pool.free.remove((neighbour.size, neighbour.address))
                block = self._join(pool, *((neighbour, block) if neighbour is block.prev else (block, neighbour)))
        self._release(pool, block)

    def _segment(self, pool: Pool, size: int) -> MemoryBlock:
        shared = pool is self._small or size < self.large_block
        return self._new_block(pool, pool.segment if shared else -(-size // (2 * _MIB)) * 2 * _MIB)

    def _grow(self, pool: Pool, size: int) -> MemoryBlock:
        """Extend the pool's single segment as needed."""
        tail = pool.last if pool.last is not None and pool.last.free else None
        missing = size - (tail.size if tail else 0)
        added = self._new_block(pool, -(-missing // pool.segment) * pool.segment)
        added.prev, pool.last = pool.last, added
        if added.prev is not None:
            added.prev.next = added
        if tail is None:
            return added
        pool.free.remove((tail.size, tail.address))
        return self._join(pool, tail, added)

    def _new_block(self, pool: Pool, size: int) -> MemoryBlock:
        self.reserved += size
        block = pool.blocks[self._address] = MemoryBlock(self._address, size, pool)
        self._address += size
        return block

    def _split(self, pool: Pool, block: MemoryBlock, size: int) -> None:
        if block.size - size <= pool.min_remainder:
            return
        rest = pool.blocks[block.address + size] = MemoryBlock(
            block.address + size, block.size - size, pool, prev=block, next=block.next
        )
        if block.next is not None:
            block.next.prev = rest
        block.next, block.size = rest, size
        if pool.last is block:
            pool.last = rest
        self._release(pool, rest)

    def _join(self, pool: Pool, left: MemoryBlock, right: MemoryBlock) -> MemoryBlock:
        del pool.blocks[right.address]
        left.size += right.size
        left.next = right.next
        if right.next is not None:
            right.next.prev = left
        if pool.last is right:
            pool.last = left
        return left

    def _release(self, pool: Pool, block: MemoryBlock) -> None:
        block.free = True
        bisect.insort(pool.free, (block.size, block.address))
