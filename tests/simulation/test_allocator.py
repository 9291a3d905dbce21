"""The model of torch's caching allocator: rounding, pools, splitting, cached segments."""

from __future__ import annotations

import pytest

from tightfit.simulation.allocator import CachingAllocator, expandable_segments

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


def test_expandable_segments_follow_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not expandable_segments()
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    assert expandable_segments()
