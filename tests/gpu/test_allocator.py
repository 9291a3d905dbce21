"""The simulated caching allocator against torch's own: the same allocations and releases, the same bytes reserved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gpu.fakes import GB, run

CODE = """
    import random
    from tightfit.simulation.caching_allocator import CachingAllocator

    def compare(seed):
        picker, ours = random.Random(seed), CachingAllocator(expandable={expandable})
        torch.cuda.empty_cache()
        live, different = [], 0
        for number in range(1500):
            if live and picker.random() < 0.48:
                tensor, block = live.pop(picker.randrange(len(live)))
                del tensor
                ours.free(block)
            elif number % 500 == 499:
                torch.cuda.empty_cache()
                ours.release_cached()
            else:
                size = int(2 ** picker.uniform(4, 26))
                live.append((torch.empty(size, dtype=torch.uint8, device="cuda"), ours.alloc(size)))
            different += ours.reserved != torch.cuda.memory_reserved()
        return different, ours.reserved >> 20

    print(json.dumps([compare(seed) for seed in range(8)]))
"""


@pytest.mark.parametrize("expandable", [False, True])
def test_random_allocations_reserve_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expandable: bool) -> None:
    """After each of 1,500 allocations, releases and emptied caches."""
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", f"expandable_segments:{expandable}")
    found = json.loads(run(CODE.format(expandable=expandable), tmp_path, memory=64 * GB))
    assert [different for different, _ in found] == [0] * len(found)
    assert all(reserved > 100 for _, reserved in found)
