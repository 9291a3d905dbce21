"""torch's caching allocator, as documented: rounding, pools, splitting, segments that stay."""

from __future__ import annotations

import pytest

from tightfit.simulation.allocator import CachingAllocator, expandable_segments

MIB = 1 << 20


def test_sizes_are_rounded_to_512_bytes() -> None:
    allocator = CachingAllocator()
    allocator.take(1)
    allocator.take(513)
    assert allocator.allocated == 512 + 1024


@pytest.mark.parametrize(("size", "segment"), [(1, 2), (MIB, 2), (MIB + 1, 20), (9 * MIB, 20), (11 * MIB, 12)])
def test_segments(size: int, segment: int) -> None:
    allocator = CachingAllocator()
    allocator.take(size)
    assert allocator.reserved == segment * MIB


def test_small_and_large_blocks_do_not_share() -> None:
    allocator = CachingAllocator()
    allocator.give_back(allocator.take(9 * MIB))
    allocator.take(1000)
    assert allocator.reserved == 22 * MIB


def test_what_was_given_back_is_used_again_whole_or_in_parts() -> None:
    allocator = CachingAllocator()
    chunks = [allocator.take(30 * MIB), allocator.take(30 * MIB)]
    for chunk in chunks:
        allocator.give_back(chunk)
    for _ in range(6):
        allocator.take(10 * MIB)
    assert allocator.reserved == 60 * MIB
    assert allocator.allocated == 60 * MIB


def test_neighbours_that_are_free_become_one() -> None:
    allocator = CachingAllocator()
    chunks = [allocator.take(5 * MIB) for _ in range(4)]
    assert allocator.reserved == 20 * MIB
    for index in (0, 2, 1, 3):
        allocator.give_back(chunks[index])
    allocator.take(20 * MIB)
    assert allocator.reserved == 20 * MIB


def test_a_small_rest_of_a_large_piece_stays_with_it() -> None:
    allocator = CachingAllocator()
    allocator.give_back(allocator.take(30 * MIB))
    allocator.take(29 * MIB + 1)
    assert allocator.allocated == 30 * MIB


def test_fragments_need_a_new_segment_unless_segments_grow() -> None:
    held = {}
    for expandable in (False, True):
        allocator = CachingAllocator(expandable=expandable)
        chunks = [allocator.take(20 * MIB) for _ in range(4)]
        allocator.give_back(chunks[2])
        allocator.give_back(chunks[3])
        allocator.take(40 * MIB)
        held[expandable] = allocator.reserved // MIB
    assert held == {False: 120, True: 80}


def test_growing_segments_are_asked_for_as_torch_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not expandable_segments()
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    assert expandable_segments()
