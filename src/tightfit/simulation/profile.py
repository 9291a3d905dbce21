"""Course: one step of a training as it goes: what is alive when, and the largest tensors when most is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tightfit.engine.meter import OTHER
from tightfit.simulation.estimate import highest_tick, stretches_of
from tightfit.simulation.scaling import BatchShape, Numbers
from tightfit.simulation.timeline import KINDS, Span, Timeline
from tightfit.simulation.trace import Block, Trace
from tightfit.simulation.tracer import any_layer
from tightfit.strategies.base import MemoryKind

_POINTS = 300
_FEWEST = 12  # points of a moment: it is to be seen, however little it takes
_LARGEST = 10


@dataclass(frozen=True)
class Segment:
    """A moment of the step, from one point to another."""

    phase: str
    start: int
    end: int
    slice: int
    """Which of the slices that are shown; -1 for what belongs to none."""


@dataclass(frozen=True)
class Largest:
    """Tensors of one shape that one module, or the same module of every layer, holds."""

    kind: MemoryKind
    owner: str | None
    """A module or a parameter, `*` for any layer; empty for the model itself, None where it is not known."""
    shape: tuple[int, ...] | None
    size: int
    """Bytes of each."""
    count: int


@dataclass(frozen=True)
class StepProfile:
    """Points on the way, thinned out so that the highest stay."""

    kinds: dict[MemoryKind, list[int]]
    """Live bytes at every point."""
    stretches: list[Segment]
    largest: list[Largest]
    """At the peak of the whole training, which may be outside of the step; the most memory first."""
    phase: str
    """When that is."""


def profile_of(timeline: Timeline, trace: Trace, shapes: Sequence[BatchShape | None], peak: str) -> StepProfile | None:
    """Read the step of a played training; None where it has none. `peak` is the moment of the bill's peak."""
    if timeline.step is None:
        return None
    sizes, spans = timeline.read(shapes)
    sizes = np.where(timeline.on_host, 0, sizes)  # what waits beside a card is not in it
    live = timeline.live(sizes)
    total = live.sum(axis=1)
    ticks, stretches = _thinned(total, _of_the_step(timeline.step, spans))
    kinds = {kind: live[ticks, column].tolist() for column, kind in enumerate(KINDS) if live[ticks, column].any()}
    tick = highest_tick(total, stretches_of(peak, spans))
    alive = np.flatnonzero((timeline.born <= tick) & (tick < timeline.died) & (sizes > 0))
    return StepProfile(kinds, stretches, _largest(timeline, trace, shapes, sizes, alive), peak)


def _of_the_step(step: tuple[int, int], spans: Sequence[Span]) -> list[Span]:
    inside = [s for s in spans if step[0] <= s.start < step[1] and (s.end > s.start or s.phase != OTHER)]
    return sorted(inside, key=lambda span: span.start)


def _thinned(total: Numbers, spans: Sequence[Span]) -> tuple[Numbers, list[Segment]]:
    """Of as many ticks as make one point, the one when most is alive."""
    ticks: list[int] = []
    stretches: list[Segment] = []
    whole = sum(span.end - span.start for span in spans)
    slices = sorted({span.section for span in spans if span.section >= 0})
    for span in spans:
        fewest = 1 if span.phase == OTHER else _FEWEST
        start, points = len(ticks), max(fewest, round(_POINTS * (span.end - span.start) / whole))
        edges = np.linspace(span.start, span.end, points + 1).astype(int).tolist()
        ticks += [low + int(total[low : high + 1].argmax()) for low, high in pairwise(edges)]
        section = slices.index(span.section) if span.section >= 0 else -1
        if stretches and (stretches[-1].phase, stretches[-1].slice) == (span.phase, section):
            start = stretches.pop().start
        stretches.append(Segment(span.phase, start, len(ticks) - 1, section))
    return np.array(ticks, dtype=np.int64), [s for s in stretches if s.phase != OTHER or s.end > s.start]


def _largest(
    timeline: Timeline, trace: Trace, shapes: Sequence[BatchShape | None], sizes: Numbers, alive: Numbers
) -> list[Largest]:
    """Tensors that are alike are one line: a model's layers are."""
    groups: Counter[tuple[MemoryKind, str | None, int]] = Counter()
    example: dict[tuple[MemoryKind, str | None, int], int] = {}
    for index in alive.tolist():
        owner = trace.blocks[timeline.block[index]].owner
        named = any_layer(owner) if isinstance(owner, str) else None
        key = KINDS[timeline.kind[index]], named, int(sizes[index])
        groups[key] += 1
        example.setdefault(key, index)
    most = sorted(groups.items(), key=lambda item: -item[0][2] * item[1])[:_LARGEST]
    finder = _Shapes(timeline, trace, shapes)
    return [Largest(*key[:2], finder.of(example[key], key[2]), key[2], count) for key, count in most]


@dataclass(frozen=True)
class _Shapes:
    """Shapes as they were played, read for other rows and tokens."""

    timeline: Timeline
    trace: Trace
    shapes: Sequence[BatchShape | None]

    def of(self, index: int, size: int) -> tuple[int, ...] | None:
        """None where it cannot be told, or where it does not come to the size."""
        block = self.trace.blocks[self.timeline.block[index]]
        section = int(self.timeline.sizes.section[index])
        if block.shape is None or not block.size:
            return None
        batch = self.shapes[section % len(self.shapes)] if section >= 0 else None
        partner = self._partner(block) if batch is not None and block.section >= 0 else None
        shape = tuple(block.shape) if partner is None else self._grown(block, partner, batch or (1, 1))
        numbers = math.prod(block.shape)
        fits = shape is not None and numbers and math.prod(shape) * (block.size // numbers) == size
        return shape if fits else None

    def _partner(self, block: Block) -> Block | None:
        """The same block of the slice that was played beside its own."""
        beside = block.section ^ 1
        if beside >= len(self.trace.sections):
            return None
        own, other = (
            [b for b in self.trace.blocks if b.section == section and b.kind is not MemoryKind.OPTIMIZER_STATE]
            for section in (block.section, beside)
        )
        place = next((place for place, each in enumerate(own) if each is block), None)
        return other[place] if place is not None and len(own) == len(other) else None

    def _grown(self, block: Block, partner: Block, shape: BatchShape) -> tuple[int, ...] | None:
        """Each side is a number times nothing, rows, tokens or both, as the two slices tell."""
        if block.shape is None or partner.shape is None or len(block.shape) != len(partner.shape):
            return None
        here, there = (self.trace.sections[each.section] for each in (block, partner))
        rules = [_sides(s.rows, s.length) for s in (here, there)] + [_sides(*shape)]
        sides = [_side(a, b, rules) for a, b in zip(block.shape, partner.shape, strict=True)]
        return None if None in sides else tuple(side for side in sides if side is not None)


def _sides(rows: int, tokens: int) -> tuple[int, ...]:
    return 1, rows, tokens, rows * tokens


def _side(here: int, there: int, rules: Sequence[tuple[int, ...]]) -> int | None:
    for traced, beside, wanted in zip(*rules, strict=True):
        if here % traced == 0 and here * beside == there * traced:
            return here // traced * wanted
    return None
