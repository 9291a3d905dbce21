"""Step profile: the live memory over one training step, and the largest tensors at the peak."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tightfit.data.batching import BatchShape
from tightfit.engine.meter import OTHER
from tightfit.simulation.estimate import peak_tick_of, ticks_of
from tightfit.simulation.scaling import Array
from tightfit.simulation.timeline import KINDS, Span, Timeline
from tightfit.simulation.trace import Block, Trace
from tightfit.simulation.tracer import wildcard_layer
from tightfit.strategies.base import MemoryKind

_POINTS = 300
_MIN_POINTS = 12  # per phase, so that short phases stay visible
_MAX_GROUPS = 10


@dataclass(frozen=True)
class Segment:
    """A phase of the step: a range of indices of StepProfile's points."""

    phase: str
    start: int
    end: int
    micro_batch: int
    """Index among the micro-batches shown; -1 for none."""


@dataclass(frozen=True)
class TensorGroup:
    """Tensors of one shape that belong to one module, or to the same module of every layer."""

    kind: MemoryKind
    owner: str | None
    """A module or parameter, with `*` for any layer; empty for the model itself, None where unknown."""
    shape: tuple[int, ...] | None
    size: int
    """Bytes of each tensor."""
    count: int


@dataclass(frozen=True)
class StepProfile:
    """Live memory at points of one step, downsampled so that the highest points are kept."""

    kinds: dict[MemoryKind, list[int]]
    """Live bytes at every point."""
    segments: list[Segment]
    largest: list[TensorGroup]
    """The largest tensors at the peak of the whole run, which may be outside the step; most memory first."""
    phase: str
    """The phase of that peak."""


def profile_of(timeline: Timeline, trace: Trace, shapes: Sequence[BatchShape | None], peak: str) -> StepProfile | None:
    """The profile of a traced step; None if it has no step. `peak` is the phase of the estimate's peak."""
    if timeline.step is None:
        return None
    sizes, spans = timeline.read(shapes)
    sizes = np.where(timeline.on_host, 0, sizes)  # offloaded blocks take no GPU memory
    live = timeline.live(sizes)
    total = live.sum(axis=1)
    ticks, segments = _downsample(total, _step_spans(timeline.step, spans))
    kinds = {kind: live[ticks, column].tolist() for column, kind in enumerate(KINDS) if live[ticks, column].any()}
    tick = peak_tick_of(total, ticks_of(peak, spans))
    alive = np.flatnonzero((timeline.alloc_ticks <= tick) & (tick < timeline.free_ticks) & (sizes > 0))
    return StepProfile(kinds, segments, _largest_groups(timeline, trace, shapes, sizes, alive), peak)


def _step_spans(step: tuple[int, int], spans: Sequence[Span]) -> list[Span]:
    inside = [s for s in spans if step[0] <= s.start < step[1] and (s.end > s.start or s.phase != OTHER)]
    return sorted(inside, key=lambda span: span.start)


def _downsample(total: Array, spans: Sequence[Span]) -> tuple[Array, list[Segment]]:
    """One point for many ticks: the tick with the most live bytes."""
    ticks: list[int] = []
    segments: list[Segment] = []
    total_ticks = sum(span.end - span.start for span in spans)
    sections = sorted({span.section for span in spans if span.section >= 0})
    for span in spans:
        min_points = 1 if span.phase == OTHER else _MIN_POINTS
        start, points = len(ticks), max(min_points, round(_POINTS * (span.end - span.start) / total_ticks))
        edges = np.linspace(span.start, span.end, points + 1).astype(int).tolist()
        ticks += [low + int(total[low : high + 1].argmax()) for low, high in pairwise(edges)]
        micro_batch = sections.index(span.section) if span.section >= 0 else -1
        if segments and (segments[-1].phase, segments[-1].micro_batch) == (span.phase, micro_batch):
            start = segments.pop().start
        segments.append(Segment(span.phase, start, len(ticks) - 1, micro_batch))
    return np.array(ticks, dtype=np.int64), [s for s in segments if s.phase != OTHER or s.end > s.start]


def _largest_groups(
    timeline: Timeline, trace: Trace, shapes: Sequence[BatchShape | None], sizes: Array, alive: Array
) -> list[TensorGroup]:
    """Group equal tensors, such as those of a model's layers, and keep the largest groups."""
    groups: Counter[tuple[MemoryKind, str | None, int]] = Counter()
    example: dict[tuple[MemoryKind, str | None, int], int] = {}
    for index in alive.tolist():
        owner = trace.blocks[timeline.block[index]].owner
        name = wildcard_layer(owner) if isinstance(owner, str) else None
        key = KINDS[timeline.kind[index]], name, int(sizes[index])
        groups[key] += 1
        example.setdefault(key, index)
    most = sorted(groups.items(), key=lambda item: -item[0][2] * item[1])[:_MAX_GROUPS]
    shape_finder = _ShapeFinder(timeline, trace, shapes)
    return [TensorGroup(*key[:2], shape_finder.of(example[key], key[2]), key[2], count) for key, count in most]


@dataclass(frozen=True)
class _ShapeFinder:
    """Rescales traced tensor shapes to other rows and tokens."""

    timeline: Timeline
    trace: Trace
    shapes: Sequence[BatchShape | None]

    def of(self, index: int, size: int) -> tuple[int, ...] | None:
        """The shape of a block; None where it is unknown or does not match the size."""
        block = self.trace.blocks[self.timeline.block[index]]
        section = int(self.timeline.sizes.section[index])
        if block.shape is None or not block.size:
            return None
        batch = self.shapes[section % len(self.shapes)] if section >= 0 else None
        partner = self._partner(block) if batch is not None and block.section >= 0 else None
        shape = tuple(block.shape) if partner is None else self._rescale(block, partner, batch or (1, 1))
        elements = math.prod(block.shape)
        fits = shape is not None and elements and math.prod(shape) * (block.size // elements) == size
        return shape if fits else None

    def _partner(self, block: Block) -> Block | None:
        """The same block of the other micro-batch of the traced pair."""
        neighbour = block.section ^ 1
        if neighbour >= len(self.trace.sections):
            return None
        own, other = (
            [b for b in self.trace.blocks if b.section == section and b.kind is not MemoryKind.OPTIMIZER_STATE]
            for section in (block.section, neighbour)
        )
        index = next((index for index, each in enumerate(own) if each is block), None)
        return other[index] if index is not None and len(own) == len(other) else None

    def _rescale(self, block: Block, partner: Block, shape: BatchShape) -> tuple[int, ...] | None:
        """Each dimension is a constant times 1, rows, tokens or both, as the two micro-batches show."""
        if block.shape is None or partner.shape is None or len(block.shape) != len(partner.shape):
            return None
        here, there = (self.trace.sections[each.section] for each in (block, partner))
        factors = [_dim_factors(s.rows, s.length) for s in (here, there)] + [_dim_factors(*shape)]
        dims = [_rescale_dim(a, b, factors) for a, b in zip(block.shape, partner.shape, strict=True)]
        return None if None in dims else tuple(dim for dim in dims if dim is not None)


def _dim_factors(rows: int, tokens: int) -> tuple[int, ...]:
    return 1, rows, tokens, rows * tokens


def _rescale_dim(here: int, there: int, factors: Sequence[tuple[int, ...]]) -> int | None:
    for traced, neighbour, wanted in zip(*factors, strict=True):
        if here % traced == 0 and here * neighbour == there * traced:
            return here // traced * wanted
    return None
