"""Allocator models: the memory that a device's allocator holds while blocks are allocated and freed.

On a CPU, large blocks are mmapped pages that are returned when freed (see `tuned_malloc` in system/memory.py), and
small ones live in the heap. GPU memory goes through torch's caching allocator (caching_allocator.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tightfit.device import Device
from tightfit.simulation.caching_allocator import CachingAllocator, MemoryBlock
from tightfit.simulation.scaling import Array
from tightfit.simulation.timeline import Span, Timeline
from tightfit.system.gpu_allocator import chosen_by_user
from tightfit.system.memory import MALLOC_THRESHOLD

_PAGE = 4 << 10
_HEADER = 80  # bytes added to an mmapped block: glibc's header and torch's alignment


def reserved_by_phase(device: Device, timeline: Timeline, sizes: Array, spans: Sequence[Span]) -> dict[str, int]:
    """The most bytes that the allocator has reserved on the device in each phase, if everything happens once."""
    reserved = _cuda_reserved(timeline, sizes) if device.kind == "cuda" else _cpu_reserved(timeline, sizes)
    peaks: dict[str, int] = {}
    for span in spans:
        peaks[span.phase] = max(peaks.get(span.phase, 0), int(reserved[span.start : span.end + 1].max()))
    return peaks


def pinned_peak(timeline: Timeline, sizes: Array) -> int:
    """Peak bytes in host memory, as if all were pinned: torch rounds pinned blocks up to powers of two."""
    blocks = np.where(timeline.on_host & (sizes > 0), sizes, 0)
    rounded = np.where(blocks > 0, 2.0 ** np.ceil(np.log2(np.maximum(blocks, 1))), 0).astype(np.int64)
    return int(timeline.total(rounded).max())


def _cpu_reserved(timeline: Timeline, sizes: Array) -> Array:
    paged = np.where(sizes >= MALLOC_THRESHOLD, -(-(sizes + _HEADER) // _PAGE) * _PAGE, sizes)
    return timeline.total(paged)


def _cuda_reserved(timeline: Timeline, sizes: Array) -> Array:
    allocator = CachingAllocator(expandable=bool(chosen_by_user()))
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
