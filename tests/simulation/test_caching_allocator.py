"""The model of torch's caching allocator: rounding, pools, splitting, cached and expandable segments.

tests/gpu compares it with torch's own.
"""

from __future__ import annotations

import pytest

from tightfit.simulation.caching_allocator import CachingAllocator

MIB = 1 << 20


def test_sizes_are_rounded_to_512_bytes() -> None:
    allocator = CachingAllocator()
    allocator.alloc(1)
    allocator.alloc(513)
    assert allocator.allocated == 512 + 1024


@pytest.mark.parametrize(("size", "segment"), [(1, 2), (MIB, 2), (MIB + 1, 20), (9 * MIB, 20), (11 * MIB, 12)])
def test_segments_have_the_documented_sizes(size: int, segment: int) -> None:
    allocator = CachingAllocator()
    allocator.alloc(size)
    assert allocator.reserved == segment * MIB


def test_small_and_large_blocks_do_not_share_segments() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.alloc(9 * MIB))
    allocator.alloc(1000)
    assert allocator.reserved == 22 * MIB


def test_freed_blocks_are_reused_whole_or_split() -> None:
    allocator = CachingAllocator()
    chunks = [allocator.alloc(30 * MIB), allocator.alloc(30 * MIB)]
    for chunk in chunks:
        allocator.free(chunk)
    for _ in range(6):
        allocator.alloc(10 * MIB)
    assert allocator.reserved == 60 * MIB
    assert allocator.allocated == 60 * MIB


def test_free_neighbours_are_merged() -> None:
    allocator = CachingAllocator()
    chunks = [allocator.alloc(5 * MIB) for _ in range(4)]
    assert allocator.reserved == 20 * MIB
    for index in (0, 2, 1, 3):
        allocator.free(chunks[index])
    allocator.alloc(20 * MIB)
    assert allocator.reserved == 20 * MIB


def test_a_small_remainder_of_a_large_block_is_not_split_off() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.alloc(30 * MIB))
    allocator.alloc(29 * MIB + 1)
    assert allocator.allocated == 30 * MIB


def test_fragmentation_needs_a_new_segment_unless_segments_are_expandable() -> None:
    held = {}
    for expandable in (False, True):
        allocator = CachingAllocator(expandable=expandable)
        chunks = [allocator.alloc(20 * MIB) for _ in range(4)]
        allocator.free(chunks[2])
        allocator.free(chunks[3])
        allocator.alloc(40 * MIB)
        held[expandable] = allocator.reserved // MIB
    assert held == {False: 120, True: 80}


def test_an_expandable_segment_splits_off_even_small_remainders() -> None:
    allocator = CachingAllocator(expandable=True)
    allocator.free(allocator.alloc(30 * MIB))
    allocator.alloc(29 * MIB + 1)
    assert allocator.allocated == 29 * MIB + 512


def test_an_expandable_segment_grows_by_what_is_missing() -> None:
    allocator = CachingAllocator(expandable=True)
    allocator.alloc(15 * MIB)
    allocator.alloc(15 * MIB)  # 5 MiB are left of the first page
    assert allocator.reserved == 40 * MIB


def test_a_hole_is_preferred_to_the_end_of_an_expandable_segment() -> None:
    """What is at the end can grow: it counts as larger than any hole."""
    allocator = CachingAllocator(expandable=True)
    hole, _, end = (allocator.alloc(size * MIB) for size in (30, 20, 10))
    address = hole.address
    allocator.free(hole)
    allocator.free(end)
    assert allocator.alloc(8 * MIB).address == address


@pytest.mark.parametrize("expandable", [False, True])
def test_released_memory_is_given_back_and_taken_again(expandable: bool) -> None:
    allocator = CachingAllocator(expandable=expandable)
    blocks = [allocator.alloc(size) for size in (30 * MIB, 50 * MIB, 1000)]
    for block in blocks:
        allocator.free(block)
    allocator.release_cached()
    assert allocator.reserved == 0
    allocator.alloc(80 * MIB)
    assert allocator.reserved == 80 * MIB


def test_a_segment_that_is_still_in_use_is_released_page_by_page() -> None:
    """From 15 to 85 MiB is free: three whole pages of 20 MiB if the segment is expandable, else nothing."""
    held = {}
    for expandable in (False, True):
        allocator = CachingAllocator(expandable=expandable)
        allocator.free(allocator.alloc(100 * MIB))
        _, middle, _ = (allocator.alloc(size * MIB) for size in (15, 70, 15))
        allocator.free(middle)
        allocator.release_cached()
        held[expandable] = allocator.reserved // MIB
        allocator.alloc(70 * MIB)
        assert allocator.reserved == 100 * MIB
    assert held == {False: 100, True: 40}
