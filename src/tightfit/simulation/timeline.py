"""Timeline: a trace as arrays, with a second forward and backward pass, evaluated for any batch shape.

A trace has one pass over the micro-batches and two optimizer steps. The first pass of real training runs without
optimizer state and all later ones with it, so the pass is inserted again between the two steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tightfit.data.batching import BatchShape
from tightfit.simulation.scaling import Array, Sizes
from tightfit.simulation.trace import Trace
from tightfit.strategies.base import MemoryKind

KINDS = list(MemoryKind)
PASS_START, PASS_END, STATE_ALLOCATED, STEPS_END = "pass start", "pass end", "state allocated", "steps end"
STATE_DROPPED = "state dropped"


@dataclass(frozen=True)
class Span:
    """A continuous part of one phase, in ticks, and the section it belongs to (-1: none)."""

    phase: str
    start: int
    end: int
    section: int


@dataclass(frozen=True)
class Timeline:
    """When each block is allocated and freed, its memory kind and its size."""

    alloc_ticks: Array
    free_ticks: Array
    kind: Array
    """Indices into KINDS."""
    sizes: Sizes
    spans: list[Span]
    end: int
    sections: int
    """Number of sections in one pass; the second pass has as many of its own."""
    block: Array
    """Index of each block in the trace."""
    step: tuple[int, int] | None = None
    """First and last tick of the second pass and its optimizer step, which are like all later ones."""

    @classmethod
    def of(cls, trace: Trace, sizes: Sizes) -> Timeline:
        """The trace with the second pass inserted."""
        end = trace.tick + 1
        spans = [Span(name, start, stop, section) for name, start, stop, section in trace.spans()]
        once = cls(
            alloc_ticks=np.array([block.alloc_tick for block in trace.blocks]),
            free_ticks=np.array([end if block.free_tick is None else block.free_tick for block in trace.blocks]),
            kind=np.array([KINDS.index(kind) for kind in trace.kinds()]),
            sizes=sizes,
            spans=spans,
            end=end,
            sections=len(trace.sections),
            block=np.arange(len(trace.blocks)),
        )
        if STATE_ALLOCATED not in trace.marks:
            return once
        pass_start, pass_end, state = (trace.marks[name] for name in (PASS_START, PASS_END, STATE_ALLOCATED))
        twice = once._with_second_pass(pass_start, pass_end, state)
        return replace(twice, step=(state, trace.marks[STEPS_END] + pass_end - pass_start))

    @property
    def on_host(self) -> Array:
        """Mask of the blocks in host memory beside a GPU."""
        return self.kind == KINDS.index(MemoryKind.HOST)

    def live(self, sizes: Array) -> Array:
        """Live bytes at every tick, a column for each kind."""
        kinds, count = len(KINDS), (self.end + 2) * len(KINDS)
        allocated, freed = (
            np.bincount(ticks * kinds + self.kind, sizes, count) for ticks in (self.alloc_ticks, self.free_ticks)
        )
        return (allocated - freed).astype(np.int64).reshape(-1, kinds).cumsum(axis=0)

    def live_at(self, tick: int, sizes: Array) -> Array:
        """Live bytes of each kind at one tick."""
        alive = (self.alloc_ticks <= tick) & (self.free_ticks > tick)
        return np.bincount(self.kind[alive], sizes[alive], len(KINDS)).astype(np.int64)

    def total(self, sizes: Array) -> Array:
        """Live bytes at every tick, summed over all kinds."""
        allocated, freed = (np.bincount(ticks, sizes, self.end + 2) for ticks in (self.alloc_ticks, self.free_ticks))
        return (allocated - freed).astype(np.int64).cumsum()

    def read(self, shapes: Sequence[BatchShape | None]) -> tuple[Array, list[Span]]:
        """Sizes of all blocks, and the spans that are not left out, for these rows and tokens of each section.

        The second pass is like the first unless its sections are given too.
        """
        shapes = [*shapes, *shapes[len(shapes) - self.sections :]][: 2 * self.sections] or shapes
        spans = [span for span in self.spans if span.section < 0 or shapes[span.section] is not None]
        return self.sizes.at(shapes), spans

    def _with_second_pass(self, start: int, end: int, state: int) -> Timeline:
        inserted, shift = end - start, state - start
        inside = (self.alloc_ticks > start) & (self.alloc_ticks <= end)
        repeated = inside & (self.kind != KINDS.index(MemoryKind.OPTIMIZER_STATE)) & (self.free_ticks < self.end)
        gradients = repeated & (self.free_ticks > state)  # those of the first pass are freed by the first step
        alloc, free = (
            np.where(ticks > state, ticks + inserted, ticks) for ticks in (self.alloc_ticks, self.free_ticks)
        )
        first_free = np.where(gradients, state, free)
        second_free = np.where(self.free_ticks <= end, self.free_ticks + shift, np.maximum(free, state + inserted))
        chosen = np.flatnonzero(repeated)
        sizes = self.sizes
        return replace(
            self,
            alloc_ticks=np.concatenate([alloc, self.alloc_ticks[chosen] + shift]),
            free_ticks=np.concatenate([first_free, second_free[chosen]]),
            kind=np.concatenate([self.kind, self.kind[chosen]]),
            block=np.concatenate([self.block, chosen]),
            sizes=Sizes(
                np.concatenate([sizes.coefficient, sizes.coefficient[chosen]]),
                np.concatenate([sizes.powers, sizes.powers[chosen]]),
                np.concatenate([sizes.section, self._second_pass_section(sizes.section[chosen])]),
                np.concatenate([sizes.bounds, sizes.bounds[chosen]]),
            ),
            spans=self._repeated_spans(start, end, state),
            end=self.end + inserted,
        )

    def _repeated_spans(self, start: int, end: int, state: int) -> list[Span]:
        inserted, shift = end - start, state - start
        spans = []
        for span in self.spans:
            delay = inserted if span.start >= state else 0
            spans.append(replace(span, start=span.start + delay, end=span.end + delay))
            if start <= span.start and span.end <= end:
                section = int(self._second_pass_section(np.array(span.section)))
                spans.append(replace(span, start=span.start + shift, end=span.end + shift, section=section))
        return spans

    def _second_pass_section(self, section: Array) -> Array:
        """Sections of the second pass are numbered after those of the first, since its batch is another one."""
        return np.where(section < 0, section, section + self.sections)
