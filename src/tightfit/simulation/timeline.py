"""Timeline: a played training as arrays, with its second step put in, ready to be read for any slice of data.

The play goes through the slices once and steps the optimizer twice. The first pass of a real training runs
without optimizer state and the second beside it, so the pass is put in again between the two steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tightfit.simulation.scaling import BatchShape, Numbers, Sizes
from tightfit.simulation.trace import Trace
from tightfit.strategies.base import MemoryKind

KINDS = list(MemoryKind)
PASS_BEGINS, PASS_ENDS, STATE_IS_THERE, STEPS_END = "pass begins", "pass ends", "state is there", "steps end"


@dataclass(frozen=True)
class Span:
    """A stretch of one moment, from tick to tick, and the section of data it belongs to (-1: none)."""

    phase: str
    start: int
    end: int
    section: int


@dataclass(frozen=True)
class Timeline:
    """When each block is born and dies, what it is for, and how large it is."""

    born: Numbers
    died: Numbers
    kind: Numbers
    """Columns of KINDS."""
    sizes: Sizes
    spans: list[Span]
    end: int
    sections: int
    """How many there are in one pass; the second pass has as many of its own."""
    block: Numbers
    """Which block of the tape each is."""
    step: tuple[int, int] | None = None
    """From where to where the second pass and its step go: one step as all later ones are."""

    @classmethod
    def of(cls, trace: Trace, sizes: Sizes) -> Timeline:
        """The tape with the second pass put in."""
        end = trace.clock + 1
        spans = [Span(name, start, stop, section) for name, start, stop, section in trace.spans()]
        once = cls(
            born=np.array([block.born for block in trace.blocks]),
            died=np.array([end if block.died is None else block.died for block in trace.blocks]),
            kind=np.array([KINDS.index(kind) for kind in trace.kinds()]),
            sizes=sizes,
            spans=spans,
            end=end,
            sections=len(trace.sections),
            block=np.arange(len(trace.blocks)),
        )
        if STATE_IS_THERE not in trace.marks:
            return once
        begins, ends, state = (trace.marks[name] for name in (PASS_BEGINS, PASS_ENDS, STATE_IS_THERE))
        twice = once._with_second_pass(begins, ends, state)
        return replace(twice, step=(state, trace.marks[STEPS_END] + ends - begins))

    @property
    def on_host(self) -> Numbers:
        """Which blocks are in the memory around a card."""
        return self.kind == KINDS.index(MemoryKind.HOST)

    def live(self, sizes: Numbers) -> Numbers:
        """Live bytes at every tick, a column for each kind."""
        kinds, count = len(KINDS), (self.end + 2) * len(KINDS)
        born, died = (np.bincount(ticks * kinds + self.kind, sizes, count) for ticks in (self.born, self.died))
        return (born - died).astype(np.int64).reshape(-1, kinds).cumsum(axis=0)

    def live_at(self, tick: int, sizes: Numbers) -> Numbers:
        """Live bytes of each kind at one tick."""
        alive = (self.born <= tick) & (self.died > tick)
        return np.bincount(self.kind[alive], sizes[alive], len(KINDS)).astype(np.int64)

    def total(self, sizes: Numbers) -> Numbers:
        """Live bytes at every tick, whatever their kind."""
        born, died = (np.bincount(ticks, sizes, self.end + 2) for ticks in (self.born, self.died))
        return (born - died).astype(np.int64).cumsum()

    def read(self, shapes: Sequence[BatchShape | None]) -> tuple[Numbers, list[Span]]:
        """Sizes of all blocks, and the spans that take place, for these rows and tokens of each section.

        The second pass is like the first unless its sections are given too.
        """
        shapes = [*shapes, *shapes[len(shapes) - self.sections :]][: 2 * self.sections] or shapes
        spans = [span for span in self.spans if span.section < 0 or shapes[span.section] is not None]
        return self.sizes.at(shapes), spans

    def _with_second_pass(self, begins: int, ends: int, state: int) -> Timeline:
        inserted, shift = ends - begins, state - begins
        inside = (self.born > begins) & (self.born <= ends)
        again = inside & (self.kind != KINDS.index(MemoryKind.OPTIMIZER_STATE)) & (self.died < self.end)
        outlives = again & (self.died > state)  # gradients: those of the first pass go with the first step
        born, died = (np.where(ticks > state, ticks + inserted, ticks) for ticks in (self.born, self.died))
        first_died = np.where(outlives, state, died)
        second_died = np.where(self.died <= ends, self.died + shift, np.maximum(died, state + inserted))
        chosen = np.flatnonzero(again)
        sizes = self.sizes
        return replace(
            self,
            born=np.concatenate([born, self.born[chosen] + shift]),
            died=np.concatenate([first_died, second_died[chosen]]),
            kind=np.concatenate([self.kind, self.kind[chosen]]),
            block=np.concatenate([self.block, chosen]),
            sizes=Sizes(
                np.concatenate([sizes.coefficient, sizes.coefficient[chosen]]),
                np.concatenate([sizes.powers, sizes.powers[chosen]]),
                np.concatenate([sizes.section, self._again(sizes.section[chosen])]),
            ),
            spans=self._spans_twice(begins, ends, state),
            end=self.end + inserted,
        )

    def _spans_twice(self, begins: int, ends: int, state: int) -> list[Span]:
        inserted, shift = ends - begins, state - begins
        spans = []
        for span in self.spans:
            late = inserted if span.start >= state else 0
            spans.append(replace(span, start=span.start + late, end=span.end + late))
            if begins <= span.start and span.end <= ends:
                section = int(self._again(np.array(span.section)))
                spans.append(replace(span, start=span.start + shift, end=span.end + shift, section=section))
        return spans

    def _again(self, section: Numbers) -> Numbers:
        """The sections of the second pass are counted after those of the first: its batch is another one."""
        return np.where(section < 0, section, section + self.sections)
