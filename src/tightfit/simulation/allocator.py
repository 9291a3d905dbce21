"""Replay: what the device's allocator holds while blocks come and go.

On a CPU large blocks are pages of their own and go back at once (allocator.py sees to that), small ones live in
the heap. A card's memory goes through torch's caching allocator, which takes segments and keeps them.
"""

from __future__ import annotations

import bisect
import os
from dataclasses import dataclass, field

import numpy as np

from tightfit.device import Device
from tightfit.simulation.scaling import Numbers
from tightfit.simulation.timeline import Timeline
from tightfit.system import THRESHOLD

_KIB, _MIB = 1 << 10, 1 << 20
_PAGE = 4 * _KIB
_HEADER = 80  # of a block of its own: glibc's, and torch's alignment


def reserved_over_time(device: Device, timeline: Timeline, sizes: Numbers) -> Numbers:
    """Bytes that the allocator has taken from the device, at every tick."""
    if device.kind == "cuda":
        return _cached(timeline, sizes, CachingAllocator(expandable=expandable_segments()))
    return _in_pages(timeline, sizes)


def pinned_peak(timeline: Timeline, sizes: Numbers) -> int:
    """The most bytes in host memory, as if all were pinned: torch takes pinned blocks in powers of two."""
    blocks = np.where(timeline.on_host & (sizes > 0), sizes, 0)
    rounded = np.where(blocks > 0, 2.0 ** np.ceil(np.log2(np.maximum(blocks, 1))), 0).astype(np.int64)
    return int(timeline.total(rounded).max())


def expandable_segments() -> bool:
    """Whether the user's environment asks torch for segments that grow."""
    settings = os.environ.get("PYTORCH_ALLOC_CONF", "") + os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
    return "expandable_segments:true" in settings.lower()


def _in_pages(timeline: Timeline, sizes: Numbers) -> Numbers:
    paged = np.where(sizes >= THRESHOLD, -(-(sizes + _HEADER) // _PAGE) * _PAGE, sizes)
    return timeline.total(paged)


def _cached(timeline: Timeline, sizes: Numbers, allocator: CachingAllocator) -> Numbers:
    there = np.flatnonzero((sizes > 0) & ~timeline.on_host)
    deaths = [(tick, 0, i) for i, tick in zip(there.tolist(), timeline.died[there].tolist(), strict=True)]
    births = [(tick, 1, i) for i, tick in zip(there.tolist(), timeline.born[there].tolist(), strict=True)]
    change = np.zeros(timeline.end + 2, dtype=np.int64)
    places: dict[int, MemoryBlock] = {}
    for tick, birth, index in sorted(deaths + births):
        before = allocator.reserved
        if birth:
            places[index] = allocator.take(int(sizes[index]))
        else:
            allocator.give_back(places.pop(index))
        change[tick] += allocator.reserved - before
    return change.cumsum()


@dataclass(eq=False)
class MemoryBlock:
    """A stretch of a segment."""

    address: int
    size: int
    pool: Pool
    free: bool = False
    before: MemoryBlock | None = None
    after: MemoryBlock | None = None


@dataclass(eq=False)
class Pool:
    """Free pieces, smallest first, of the small or the large blocks."""

    segment: int
    """Bytes a segment has at least."""
    keep: int
    """A rest this small is not split off."""
    free: list[tuple[int, int]] = field(default_factory=list)
    blocks: dict[int, MemoryBlock] = field(default_factory=dict)
    last: MemoryBlock | None = None
    """The end of the one segment that grows."""


class CachingAllocator:
    """torch's CUDA allocator: steps of 512 bytes, segments of 2 MiB for small blocks, of 20 MiB or more for large."""

    small_block, large_block = _MIB, 10 * _MIB

    def __init__(self, *, expandable: bool = False) -> None:
        self.reserved = 0
        self.allocated = 0
        self.expandable = expandable
        self._small = Pool(segment=2 * _MIB, keep=511)
        self._large = Pool(segment=20 * _MIB, keep=_MIB)
        self._address = 0

    def take(self, size: int) -> MemoryBlock:
        """The smallest free piece that is large enough, or a new segment; the rest is split off."""
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

    def give_back(self, block: MemoryBlock) -> None:
        """The piece is free, in one with its free neighbours."""
        self.allocated -= block.size
        pool = block.pool
        for neighbour in (block.before, block.after):
            if neighbour is not None and neighbour.free:
                pool.free.remove((neighbour.size, neighbour.address))
                block = self._join(pool, *((neighbour, block) if neighbour is block.before else (block, neighbour)))
        self._release(pool, block)

    def _segment(self, pool: Pool, size: int) -> MemoryBlock:
        shared = pool is self._small or size < self.large_block
        return self._new_piece(pool, pool.segment if shared else -(-size // (2 * _MIB)) * 2 * _MIB)

    def _grow(self, pool: Pool, size: int) -> MemoryBlock:
        """One segment a pool, mapped further as needed."""
        tail = pool.last if pool.last is not None and pool.last.free else None
        missing = size - (tail.size if tail else 0)
        fresh = self._new_piece(pool, -(-missing // pool.segment) * pool.segment)
        fresh.before, pool.last = pool.last, fresh
        if fresh.before is not None:
            fresh.before.after = fresh
        if tail is None:
            return fresh
        pool.free.remove((tail.size, tail.address))
        return self._join(pool, tail, fresh)

    def _new_piece(self, pool: Pool, size: int) -> MemoryBlock:
        self.reserved += size
        block = pool.blocks[self._address] = MemoryBlock(self._address, size, pool)
        self._address += size
        return block

    def _split(self, pool: Pool, block: MemoryBlock, size: int) -> None:
        if block.size - size <= pool.keep:
            return
        rest = pool.blocks[block.address + size] = MemoryBlock(
            block.address + size, block.size - size, pool, before=block, after=block.after
        )
        if block.after is not None:
            block.after.before = rest
        block.after, block.size = rest, size
        if pool.last is block:
            pool.last = rest
        self._release(pool, rest)

    def _join(self, pool: Pool, left: MemoryBlock, right: MemoryBlock) -> MemoryBlock:
        del pool.blocks[right.address]
        left.size += right.size
        left.after = right.after
        if right.after is not None:
            right.after.before = left
        if pool.last is right:
            pool.last = left
        return left

    def _release(self, pool: Pool, block: MemoryBlock) -> None:
        block.free = True
        bisect.insort(pool.free, (block.size, block.address))
