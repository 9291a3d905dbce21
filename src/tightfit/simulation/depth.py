"""Depth extrapolation: the trace of a deep model from the traces of two shallow ones that differ by one layer.

The events that only the deeper of the two has are one layer's share: segments of the forward pass, the backward pass
and the optimizer step. They are repeated for every missing layer, so the result is the trace of the deep model, block
by block.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, NamedTuple

from tightfit.simulation.scaling import NotExtrapolable
from tightfit.simulation.timeline import PASS_END, STATE_ALLOCATED, STATE_DROPPED, STEPS_END
from tightfit.simulation.trace import Block, Section, Trace
from tightfit.strategies.base import MemoryKind

_RESYNC = 32  # equal events in a row after which two traces count as aligned again


class Group(NamedTuple):
    """Blocks that cannot be distinguished from each other."""

    kind: MemoryKind
    section: int
    size: int


@dataclass(frozen=True)
class Alloc:
    """The allocation of a block. Its owner is ignored when traces are compared."""

    group: Group
    block: Block = field(compare=False)


@dataclass
class Frees:
    """Consecutive frees: the group of each block, and how many younger blocks of the group are still live.

    They are one event because their order is arbitrary where a container of tensors is released.
    """

    blocks: list[tuple[Group, int]]

    def counted(self, known: set[Group]) -> Counter[Group]:
        """The number of blocks per group; groups that only one of two traces has are skipped: their size varies."""
        return Counter(group for group, _ in self.blocks if group in known)


Note = str | tuple[str, int] | Section
"""A mark, a phase with its section, or a section."""
Event = Alloc | Frees | Note


def extrapolate_depth(shallow: Trace, deeper: Trace, layers: int) -> Trace:
    """The trace with `layers` more layers than `deeper`, which has one more than `shallow`."""
    fewer, more = _events(shallow), _events(deeper)
    known = _groups(fewer) & _groups(more)
    tokens = _tokens(more, fewer, known)
    pairs, segments = _align(_tokens(fewer, more, known), tokens)
    partner = {j: fewer[i] for i, j in pairs}
    repeat_from = {end: start for start, end in segments}
    owner = _fix_owners(more, tokens, segments)
    writer = _Writer(known, layers)
    for index, event in enumerate(more):
        writer.write(event, partner.get(index), owner.get(index))
        for time in range(layers if index + 1 in repeat_from else 0):
            for repeated in range(repeat_from[index + 1], index + 1):
                last = time == layers - 1
                writer.write(more[repeated], None, None if last else owner.get(repeated))
    return writer.trace


def _fix_owners(events: list[Event], tokens: list[object], segments: list[tuple[int, int]]) -> dict[int, Block]:
    """The blocks that really own the last events of a segment, for its repetitions.

    A segment may start late in a layer and end with what follows all layers, if that cannot be distinguished by size
    from the start of a layer (e.g. a pooler from a query). In the repetitions its end then represents the blocks just
    before its start.
    """
    owners: dict[int, Block] = {}
    for start, end in segments:
        offset = 1
        while offset <= min(start, end - start) and tokens[start - offset] == tokens[end - offset]:
            own, before = events[end - offset], events[start - offset]
            if isinstance(own, Alloc) and isinstance(before, Alloc):
                owners[end - offset] = before.block
            offset += 1
    return owners


class _Writer:
    """Writes events to a new trace."""

    def __init__(self, known: set[Group], layers: int) -> None:
        self.trace = Trace()
        self._known = known
        self._layers = layers
        self._alive = defaultdict[Group, list[Block]](list)

    def write(self, event: Event, partner: Event | None = None, owner: Block | None = None) -> None:
        """Write an event; one that the shallower trace has too (`partner`) may grow with depth. `owner` names it."""
        if isinstance(event, Alloc):
            shallower = partner.group if isinstance(partner, Alloc) else event.group
            self._alloc(event.group, shallower, owner or event.block)
        elif isinstance(event, Frees):
            self._free(event, partner if isinstance(partner, Frees) else event)
        elif isinstance(event, Section):
            self.trace.sections.append(replace(event, start=self.trace.tick))
        elif isinstance(event, tuple):
            self.trace.phases.append((self.trace.tick, *event))
        else:
            self.trace.mark(event)

    def _alloc(self, group: Group, shallower: Group, named: Block) -> None:
        block = self.trace.alloc(group.size + self._layers * (group.size - shallower.size))
        block.kind, block.section, block.owner = group.kind, group.section, named.owner
        block.shape = named.shape if block.size == named.size else None
        block.bounds = named.bounds
        self._alive[group].append(block)

    def _free(self, frees: Frees, shallower: Frees) -> None:
        here, there = frees.counted(self._known), shallower.counted(self._known)
        if there - here:
            raise NotExtrapolable
        more = [(group, 0) for group in (here - there).elements()] * self._layers
        for group, younger in [*frees.blocks, *more]:
            same = self._alive[group]
            if not same:
                raise NotExtrapolable
            self.trace.free(same.pop(-1 - min(younger, len(same) - 1)))


class _BlockEvent(NamedTuple):
    """The allocation or the release of a block."""

    group: Group
    block: Block
    freed: bool


def _events(trace: Trace) -> list[Event]:
    """All events of a trace in order."""
    events: list[Event] = []
    alive = defaultdict[Group, list[int]](list)
    for _, event in sorted([*_block_events(trace), *_notes(trace)], key=lambda event: event[0]):
        if not isinstance(event, _BlockEvent):
            events.append(event)
        elif not event.freed:
            alive[event.group].append(event.block.alloc_tick)
            events.append(Alloc(event.group, event.block))
        else:
            _frees_at_end(events).blocks.append(_remove_freed(alive, event))
    return events


def _frees_at_end(events: list[Event]) -> Frees:
    last = events[-1] if events else None
    if isinstance(last, Frees):
        return last
    frees = Frees([])
    events.append(frees)
    return frees


def _remove_freed(alive: dict[Group, list[int]], end: _BlockEvent) -> tuple[Group, int]:
    same = alive[end.group]
    index = same.index(end.block.alloc_tick)
    del same[index]
    return end.group, len(same) - index


def _block_events(trace: Trace) -> Iterator[tuple[int, Any]]:
    for kind, block in zip(trace.kinds(), trace.blocks, strict=True):
        if not _is_scalar(block):
            group = Group(kind, block.section, block.size)
            yield block.alloc_tick, _BlockEvent(group, block, freed=False)
            if block.free_tick is not None:
                yield block.free_tick, _BlockEvent(group, block, freed=True)


def _is_scalar(block: Block) -> bool:
    """Scalars are left out, since some are allocated only once in a process.

    Small blocks are not: whether their size is below a limit would depend on the batch that is traced.
    """
    return block.shape is not None and math.prod(block.shape) == 1


def _notes(trace: Trace) -> Iterator[tuple[int, Note]]:
    yield from ((tick, name) for name, tick in trace.marks.items())
    yield from ((section.start, section) for section in trace.sections)
    yield from ((tick, (name, number)) for tick, name, number in trace.phases)


def _groups(events: list[Event]) -> set[Group]:
    return {event.group for event in events if isinstance(event, Alloc)}


def _tokens(events: list[Event], others: list[Event], known: set[Group]) -> list[object]:
    """The values to compare between two traces. An event that only one has depends on depth and is matched loosely."""
    exact = {_exact(event, known) for event in others}
    tokens = ((_exact(event, known), event) for event in events)
    return [token if token in exact else _loose(event, known) for token, event in tokens]


def _exact(event: Event, known: set[Group]) -> object:
    if isinstance(event, Frees):
        return frozenset(event.counted(known).items())
    return replace(event, start=0) if isinstance(event, Section) else event


def _loose(event: Event, known: set[Group]) -> object:
    """A key that matches a block of any size, or any number of blocks of these groups."""
    if isinstance(event, Alloc):
        return event.group._replace(size=-1)
    return frozenset(event.counted(known)) if isinstance(event, Frees) else event


def _align(fewer: list[object], more: list[object]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The pairs of equal events, and the segments that only the deeper trace has."""
    pairs, segments = [], []
    j = 0
    for i in range(len(fewer)):
        inserted = _inserted(fewer, more, i, j)
        if inserted:
            segments.append((j, j + inserted))
        j += inserted
        pairs.append((i, j))
        j += 1
    if j < len(more):
        segments.append((j, len(more)))
    if not segments:
        raise NotExtrapolable
    return pairs, segments


def _inserted(fewer: list[object], more: list[object], i: int, j: int) -> int:
    """How many events of the deeper trace come before the next one that both have."""
    if j < len(more) and fewer[i] == more[j]:
        return 0
    best, inserted = 0, 0
    for start in range(j + 1, len(more)):
        run = _agreeing(fewer, more, i, start)
        if run > best:
            best, inserted = run, start - j
        if best == _RESYNC:
            break
    if not best:
        raise NotExtrapolable
    return inserted


def _agreeing(fewer: list[object], more: list[object], i: int, j: int) -> int:
    """How many events in a row are equal from here on."""
    both = zip(fewer[i : i + _RESYNC], more[j : j + _RESYNC], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], both))


# An optimizer step after the backward pass does not depend on how the gradients were computed. So every way of
# computing gradients and every optimizer are traced once, not every pair.


def replace_optimizer_steps(gradients: Trace, optimizer: Trace) -> Trace:
    """The trace of `gradients` with its optimizer steps replaced by those of `optimizer`."""
    replaced, steps = (_Interval(trace.marks[PASS_END], trace.marks[STEPS_END]) for trace in (gradients, optimizer))
    delay, shift = steps.length - replaced.length, replaced.start - steps.start
    kept = [_delayed(block, replaced, delay) for block in gradients.blocks if not replaced.holds(block.alloc_tick)]
    dropped = gradients.marks[STATE_DROPPED] + delay
    inserted = [_of_steps(block, shift, steps, dropped) for block in optimizer.blocks if steps.holds(block.alloc_tick)]
    state = optimizer.marks[STATE_ALLOCATED] + shift
    return Trace(
        blocks=sorted([*kept, *inserted], key=lambda block: block.alloc_tick),
        phases=[
            *(phase for phase in gradients.phases if phase[0] < replaced.start),
            *_shifted_phases(optimizer, steps, shift),
            *_shifted_phases(gradients, _Interval(replaced.end, gradients.tick + 1), delay),
        ],
        sections=[replace(s, start=replaced.after(s.start, delay)) for s in gradients.sections],
        marks={name: replaced.after(tick, delay) for name, tick in gradients.marks.items()} | {STATE_ALLOCATED: state},
        tick=gradients.tick + delay,
    )


@dataclass(frozen=True)
class _Interval:
    """The ticks after `start` up to `end`."""

    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start

    def holds(self, tick: int) -> bool:
        return self.start < tick <= self.end

    def after(self, tick: int, delay: int) -> int:
        """The tick, delayed if it lies after the interval."""
        return tick + delay if tick >= self.end else tick


def _delayed(block: Block, replaced: _Interval, delay: int) -> Block:
    free_tick = None if block.free_tick is None else replaced.after(block.free_tick, delay)
    return block.moved(replaced.after(block.alloc_tick, delay), free_tick)


def _of_steps(block: Block, shift: int, steps: _Interval, dropped: int) -> Block:
    """A block of the optimizer steps; the state stays until it is dropped, which is at another tick in this trace."""
    is_state = block.free_tick is not None and block.free_tick > steps.end
    free_tick = dropped if is_state else None if block.free_tick is None else block.free_tick + shift
    return block.moved(block.alloc_tick + shift, free_tick)


def _shifted_phases(trace: Trace, of: _Interval, by: int) -> list[tuple[int, str, int]]:
    return [(start + by, name, section) for start, name, section in trace.phases if of.start <= start < of.end]
