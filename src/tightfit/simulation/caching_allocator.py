"""torch's caching allocator for GPUs, rule by rule: which block each allocation gets, and what is reserved for it.

The names are those of torch's own source (c10/cuda/CUDACachingAllocator.cpp), where the rules are. Blocks are rounded
up to 512 bytes. Those up to 1 MiB come from one pool, larger ones from another. A pool takes memory from the GPU in
segments, cuts blocks off them, merges free neighbours, and keeps everything until `release_cached`. An expandable
segment is one range of addresses per pool, to which memory is mapped and unmapped in pages.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

_MIB = 1 << 20
_GRANULARITY = 512
_SMALL_BLOCK = _MIB
"""Blocks up to this size are in the small pool."""
_LARGE_BLOCK = 10 * _MIB
"""Blocks from this size on have a segment of their own, unless segments are expandable."""
_SEGMENT_UNIT = 2 * _MIB
_ADDRESSES = 20 * _MIB << 30
"""Bytes of addresses of an expandable segment: whole pages, and more than any GPU has."""


@dataclass(eq=False, slots=True)
class MemoryBlock:
    """A part of a segment: allocated, free, or addresses that no memory is mapped to."""

    address: int
    size: int
    pool: Pool
    is_free: bool = False
    is_mapped: bool = True
    prev: MemoryBlock | None = None
    next: MemoryBlock | None = None


@dataclass(eq=False)
class Pool:
    """The blocks of one size class, small or large."""

    segment: int
    """Minimum bytes of a segment, and the pages of an expandable one."""
    min_remainder: int
    """A smaller remainder is not split off."""
    free: list[tuple[int, int]] = field(default_factory=list)
    """Size and address of each free block, smallest first."""
    blocks: dict[int, MemoryBlock] = field(default_factory=dict)
    unmapped: list[int] = field(default_factory=list)
    """The addresses of the blocks that are not mapped, lowest first."""


class CachingAllocator:
    """The caching allocator of one GPU and one stream."""

    def __init__(self, *, expandable: bool = False) -> None:
        self.reserved = 0
        self.allocated = 0
        self._expandable = expandable
        self._small = Pool(2 * _MIB, _GRANULARITY)
        self._large = Pool(20 * _MIB, _GRANULARITY if expandable else _SMALL_BLOCK + 1)
        self._address = 0
        if expandable:
            for pool in (self._small, self._large):
                self._add_unmapped(self._new_block(pool, _ADDRESSES))

    def alloc(self, size: int) -> MemoryBlock:
        """Take the smallest free block that is large enough, or memory from the GPU; the remainder is split off."""
        size = max(_GRANULARITY, -(-size // _GRANULARITY) * _GRANULARITY)
        pool = self._small if size <= _SMALL_BLOCK else self._large
        block = self._best_fit(pool, size) or self._grow(pool, size)
        block.is_free = False
        if block.size - size >= pool.min_remainder:
            self._add_free(self._split(block, size))
        self.allocated += block.size
        return block

    def free(self, block: MemoryBlock) -> None:
        """Free a block and merge it with its free neighbours."""
        self.allocated -= block.size
        self._add_free(block)

    def release_cached(self) -> None:
        """Return to the GPU what no block needs, as `torch.cuda.empty_cache` does."""
        for pool in (self._small, self._large):
            for _, address in list(pool.free):
                block = pool.blocks[address]
                if self._expandable:
                    self._unmap(block)
                elif block.prev is None and block.next is None:
                    self._take_free(block)
                    del pool.blocks[address]
                    self.reserved -= block.size

    def _best_fit(self, pool: Pool, size: int) -> MemoryBlock | None:
        """The smallest free block; one at the end of what is mapped counts as large as it can become."""
        found = bisect.bisect_left(pool.free, (size, -1))
        if found == len(pool.free):
            return None
        block = pool.blocks[pool.free[found][1]]
        while self._expandable and found + 1 < len(pool.free):
            larger = pool.blocks[pool.free[found + 1][1]]
            if _size_with_unmapped(larger) >= _size_with_unmapped(block):
                break
            block, found = larger, found + 1
        self._take_free(block)
        return block

    def _grow(self, pool: Pool, size: int) -> MemoryBlock:
        """A block of at least this size in memory that the GPU gives."""
        if self._expandable:
            return self._map_enough(self._expandable_block(pool, size), size)
        shared = pool is self._small or size < _LARGE_BLOCK
        segment = self._new_block(pool, pool.segment if shared else -(-size // _SEGMENT_UNIT) * _SEGMENT_UNIT)
        self.reserved += segment.size
        return segment

    def _expandable_block(self, pool: Pool, size: int) -> MemoryBlock:
        """The first of the free and unmapped blocks in a row that are large enough; the lowest addresses first."""
        for address in pool.unmapped:
            block = pool.blocks[address]
            if block.prev is not None and block.prev.is_free:
                block = block.prev
            if _room(block) >= size:
                return block
        raise AssertionError("the last block is larger than any GPU")

    def _map_enough(self, block: MemoryBlock, size: int) -> MemoryBlock:
        """Map the unmapped blocks of a row until its first block is large enough."""
        if not block.is_mapped:
            block = self._map(block, min(block.size, size))
        while block.size < size:
            assert block.next is not None
            block = self._map(block.next, min(size - block.size, block.next.size))
        self._take_free(block)
        return block

    def _map(self, block: MemoryBlock, size: int) -> MemoryBlock:
        """Map pages to the start of a block; returns the free block that they are part of now."""
        pool = block.pool
        pool.unmapped.remove(block.address)
        size = -(-size // pool.segment) * pool.segment
        if size < block.size:
            rest = self._split(block, size)
            rest.is_mapped = False
            self._add_unmapped(rest)
        self.reserved += block.size
        block.is_mapped = True
        return self._add_free(block)

    def _unmap(self, block: MemoryBlock) -> None:
        """Unmap the pages that lie within a free block."""
        pool = block.pool
        start = -(-block.address // pool.segment) * pool.segment
        end = (block.address + block.size) // pool.segment * pool.segment
        if end <= start:
            return
        self._take_free(block)
        if start > block.address:
            before, block = block, self._split(block, start - block.address)
            self._add_free(before)
        if end < start + block.size:
            self._add_free(self._split(block, end - start))
        self.reserved -= block.size
        block.is_mapped = block.is_free = False
        for neighbour in (block.prev, block.next):
            if neighbour is not None and not neighbour.is_mapped:
                pool.unmapped.remove(neighbour.address)
                block = self._join(neighbour, block)
        self._add_unmapped(block)

    def _new_block(self, pool: Pool, size: int) -> MemoryBlock:
        block = pool.blocks[self._address] = MemoryBlock(self._address, size, pool)
        self._address += size
        return block

    def _add_unmapped(self, block: MemoryBlock) -> None:
        block.is_mapped = False
        bisect.insort(block.pool.unmapped, block.address)

    def _add_free(self, block: MemoryBlock) -> MemoryBlock:
        """Put a block among the free ones, merged with its free neighbours; returns what they are together."""
        for neighbour in (block.prev, block.next):
            if neighbour is not None and neighbour.is_free:
                self._take_free(neighbour)
                block = self._join(neighbour, block)
        block.is_free = True
        bisect.insort(block.pool.free, (block.size, block.address))
        return block

    def _take_free(self, block: MemoryBlock) -> None:
        free = block.pool.free
        del free[bisect.bisect_left(free, (block.size, block.address))]
        block.is_free = False

    def _split(self, block: MemoryBlock, size: int) -> MemoryBlock:
        """Cut a block off at a size; returns its rest."""
        address = block.address + size
        rest = MemoryBlock(address, block.size - size, block.pool, prev=block, next=block.next)
        block.pool.blocks[address] = rest
        if block.next is not None:
            block.next.prev = rest
        block.next, block.size = rest, size
        return rest

    def _join(self, one: MemoryBlock, other: MemoryBlock) -> MemoryBlock:
        """Join two neighbours."""
        left, right = (one, other) if one.address < other.address else (other, one)
        del left.pool.blocks[right.address]
        left.size += right.size
        left.next = right.next
        if right.next is not None:
            right.next.prev = left
        return left


def _size_with_unmapped(block: MemoryBlock) -> int:
    """What a free block can become without moving."""
    return block.size + (block.next.size if block.next is not None and not block.next.is_mapped else 0)


def _room(block: MemoryBlock | None) -> int:
    """Bytes of the free and unmapped blocks in a row from this one on."""
    size = 0
    while block is not None and (block.is_free or not block.is_mapped):
        size, block = size + block.size, block.next
    return size
