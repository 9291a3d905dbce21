"""Replay: what a GPU's allocator reserves over a run, whose batches come in their order.

The caching allocator keeps its segments, so what it reserves depends on everything that happened before. A run starts
with the pre-flight (training/preflight.py): a step with one row, the largest batch, an evaluation. Then the optimizer
state is dropped, the cache released, and training begins with batches of other lengths. The trace has each of these
once; the replay repeats them for the shapes of these batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tightfit.data.batching import BatchShape
from tightfit.simulation.caching_allocator import CachingAllocator, MemoryBlock
from tightfit.simulation.scaling import Sizes
from tightfit.simulation.timeline import PASS_END, PASS_START, STATE_ALLOCATED, STEPS_END
from tightfit.simulation.trace import Trace
from tightfit.simulation.worst_case import WorstShapes
from tightfit.strategies.base import MemoryKind

MicroBatches = Sequence[BatchShape]


@dataclass(frozen=True)
class _Event:
    """A block is allocated or freed."""

    tick: int
    is_alloc: bool
    index: int


@dataclass
class Replay:
    """Replays parts of a trace on an allocator."""

    trace: Trace
    sizes: Sizes
    is_scalable: bool
    """Whether sizes are known for other shapes than the traced ones."""
    allocator: CachingAllocator
    peaks: dict[str, int] = field(default_factory=dict)
    """The most bytes reserved in each phase."""
    _live: dict[int, MemoryBlock] = field(default_factory=dict)
    _state: dict[int, MemoryBlock] = field(default_factory=dict)
    """Optimizer state, which stays from step to step."""
    _at: dict[BatchShape | None, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        blocks = self.trace.blocks
        self._kinds = self.trace.kinds()
        self._spans = [(name, start, end) for name, start, end, _ in self.trace.spans()]
        allocs = [_Event(block.alloc_tick, True, index) for index, block in enumerate(blocks)]
        frees = [_Event(b.free_tick, False, index) for index, b in enumerate(blocks) if b.free_tick is not None]
        self._kept = {index for index, block in enumerate(blocks) if block.free_tick is None}
        self._events = sorted([*allocs, *frees], key=lambda event: event.tick)
        self._ticks = np.array([event.tick for event in self._events])
        self._sections: dict[str, list[tuple[int, int]]] = {}
        for number, section in enumerate(self.trace.sections):
            last = max(end for *_, end, its in self.trace.spans() if its == number)
            ends = [last, *(mark for mark in self.trace.marks.values() if mark > section.start)]
            self._sections.setdefault(section.name, []).append((section.start, min(ends)))

    def run(self, worst: WorstShapes) -> dict[str, int]:
        """The whole run: what is reserved in each phase."""
        marks = self.trace.marks
        start = marks[PASS_START]
        features = self._sections.get("features", [])
        self._play(0, features[0][0] if features else start)
        for part, shape in zip(features, worst.encoder, strict=False):
            self._play(*part, shape)
        self._play(features[-1][1] if features else start, start)
        self._batch([worst.first_step] if self.is_scalable else worst.micro_batches, steps=True)
        self._batch(worst.micro_batches, steps=False)
        self._evaluate(worst)
        self._free(self._state)
        self.allocator.release_cached()
        for batch in worst.first_batches if self.is_scalable else [worst.micro_batches] * 2:
            self._batch(batch, steps=True)
        self._evaluate(worst)
        self._play(self._sections["evaluation"][-1][1], self.trace.tick)
        return self.peaks

    def _batch(self, micro_batches: MicroBatches, *, steps: bool) -> None:
        """Forward and backward of a batch, and an optimizer step."""
        marks, sections = self.trace.marks, self._sections["micro-batch"]
        before, is_first = set(self._live), not self._state
        for number, shape in enumerate(micro_batches):
            self._play(*sections[min(number, len(sections) - 1)], shape)
        self._play(sections[-1][1], marks[PASS_END])
        if steps and is_first:
            self._play(marks[PASS_END], marks[STATE_ALLOCATED])
        elif steps:
            self._play(marks[STATE_ALLOCATED], marks[STEPS_END])
        self._free_all_since(before)

    def _evaluate(self, worst: WorstShapes) -> None:
        before = set(self._live)
        self._play(*self._sections["evaluation"][0], worst.evaluation)
        self._free_all_since(before)

    def _free_all_since(self, before: set[int]) -> None:
        """Free what the trace frees later, such as gradients."""
        self._free({index: self._live.pop(index) for index in set(self._live) - before - self._kept})

    def _free(self, blocks: dict[int, MemoryBlock]) -> None:
        for block in blocks.values():
            self.allocator.free(block)
        blocks.clear()

    def _play(self, start: int, end: int, shape: BatchShape | None = None) -> None:
        """Replay the events of some ticks, with the sizes that blocks have for this shape."""
        sizes, allocator = self._sizes_at(shape), self.allocator
        for name, first, last in self._spans:
            low, high = max(first, start), min(last, end)
            if low > high:
                continue
            inside = slice(*np.searchsorted(self._ticks, [low, high], "right"))
            for event in self._events[inside]:
                self._apply(event, sizes)
            self.peaks[name] = max(self.peaks.get(name, 0), allocator.reserved)

    def _apply(self, event: _Event, sizes: list[int]) -> None:
        index = event.index
        if not event.is_alloc:
            block = self._live.pop(index, None) or self._state.pop(index, None)
            if block is not None:
                self.allocator.free(block)
        elif sizes[index] > 0 and self._is_missing(index):
            held = self._state if self._kinds[index] is MemoryKind.OPTIMIZER_STATE else self._live
            held[index] = self.allocator.alloc(sizes[index])

    def _is_missing(self, index: int) -> bool:
        """Whether a block has to be allocated on the GPU: state and workspaces are kept from an earlier batch."""
        if self._kinds[index] is MemoryKind.HOST or index in self._state:
            return False
        if index in self._live and index not in self._kept:
            self.allocator.free(self._live.pop(index))
        return index not in self._live

    def _sizes_at(self, shape: BatchShape | None) -> list[int]:
        if shape not in self._at:
            shapes = [shape or (1, 1)] * (self.sizes.section.max() + 1)
            self._at[shape] = self.sizes.at(shapes)[: len(self.trace.blocks)].tolist()
        return self._at[shape]
