"""Depth: the tape of a deep model from those of two shallow ones that differ by one layer.

What the deeper of the two does and the other does not is one layer's share: stretches of the forward pass, the
backward pass, the optimizer's step. They are put in again for every layer that is missing, so the tape is the one
the deep model would have written, block by block.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, NamedTuple

from tightfit.simulation.scaling import NotExtrapolable
from tightfit.simulation.timeline import PASS_ENDS, STATE_IS_THERE, STEPS_END
from tightfit.simulation.trace import Block, Section, Trace
from tightfit.strategies.base import MemoryKind

_CRUMBS = 64  # bytes: smaller blocks are left out, since some are made only once in a process
_SURE = 32  # events in a row: when so many agree, two tapes are in step again


class Group(NamedTuple):
    """Blocks that nobody can tell from one another."""

    kind: MemoryKind
    section: int
    size: int


@dataclass(frozen=True)
class Birth:
    """A block is taken. Which module took it plays no part when tapes are compared."""

    group: Group
    block: Block = field(compare=False)


@dataclass
class Deaths:
    """Blocks are given back in a row: of each, how many of its group were taken after it and are still there.

    They are one event because their order is arbitrary where a table of blocks is thrown away.
    """

    blocks: list[tuple[Group, int]]

    def counted(self, known: set[Group]) -> Counter[Group]:
        """How many of each group; without those that only one of two tapes has, which change their size."""
        return Counter(group for group, _ in self.blocks if group in known)


Note = str | tuple[str, int] | Section
"""A mark, a moment with its section, or a section."""
Event = Birth | Deaths | Note


def extrapolate_depth(shallow: Trace, deeper: Trace, layers: int) -> Trace:
    """The tape with `layers` more layers than `deeper`, which has one more than `shallow`."""
    few, more = _events(shallow), _events(deeper)
    known = _groups(few) & _groups(more)
    tokens = _tokens(more, few, known)
    pairs, stretches = _align(_tokens(few, more, known), tokens)
    partner = {j: few[i] for i, j in pairs}
    again = {end: start for start, end in stretches}
    owner = _true_owners(more, tokens, stretches)
    writer = _Writer(known, layers)
    for index, event in enumerate(more):
        writer.write(event, partner.get(index), owner.get(index))
        for time in range(layers if index + 1 in again else 0):
            for repeated in range(again[index + 1], index + 1):
                last = time == layers - 1
                writer.write(more[repeated], None, None if last else owner.get(repeated))
    return writer.trace


def _true_owners(events: list[Event], tokens: list[object], stretches: list[tuple[int, int]]) -> dict[int, Block]:
    """Whose the last blocks of a stretch really are, where it is repeated.

    A stretch may begin late in a layer and end with what comes behind all layers, if nobody can tell that from the
    beginning of a layer by its size (a pooler, from a query). Then its end stands for the blocks before its beginning.
    """
    owners: dict[int, Block] = {}
    for start, end in stretches:
        back = 1
        while back <= min(start, end - start) and tokens[start - back] == tokens[end - back]:
            own, before = events[end - back], events[start - back]
            if isinstance(own, Birth) and isinstance(before, Birth):
                owners[end - back] = before.block
            back += 1
    return owners


class _Writer:
    """Writes events on a new tape."""

    def __init__(self, known: set[Group], layers: int) -> None:
        self.trace = Trace()
        self._known = known
        self._layers = layers
        self._alive = defaultdict[Group, list[Block]](list)

    def write(self, event: Event, partner: Event | None = None, owner: Block | None = None) -> None:
        """An event that the shallower tape has too may grow with the depth. It is named after the owner's block."""
        if isinstance(event, Birth):
            shallower = partner.group if isinstance(partner, Birth) else event.group
            self._take(event.group, shallower, owner or event.block)
        elif isinstance(event, Deaths):
            self._give_back(event, partner if isinstance(partner, Deaths) else event)
        elif isinstance(event, Section):
            self.trace.sections.append(replace(event, start=self.trace.clock))
        elif isinstance(event, tuple):
            self.trace.phases.append((self.trace.clock, *event))
        else:
            self.trace.mark(event)

    def _take(self, group: Group, shallower: Group, named: Block) -> None:
        block = self.trace.take(group.size + self._layers * (group.size - shallower.size))
        block.kind, block.section, block.owner = group.kind, group.section, named.owner
        block.shape = named.shape if block.size == named.size else None
        self._alive[group].append(block)

    def _give_back(self, deaths: Deaths, shallower: Deaths) -> None:
        here, there = deaths.counted(self._known), shallower.counted(self._known)
        if there - here:
            raise NotExtrapolable
        more = [(group, 0) for group in (here - there).elements()] * self._layers
        for group, younger in [*deaths.blocks, *more]:
            same = self._alive[group]
            if not same:
                raise NotExtrapolable
            self.trace.give_back(same.pop(-1 - min(younger, len(same) - 1)))


class _End(NamedTuple):
    """The first or the last moment of a block."""

    group: Group
    block: Block
    died: bool


def _events(trace: Trace) -> list[Event]:
    """Everything on the tape in its order."""
    events: list[Event] = []
    alive = defaultdict[Group, list[int]](list)
    for _, what in sorted([*_ends(trace), *_notes(trace)], key=lambda event: event[0]):
        if not isinstance(what, _End):
            events.append(what)
        elif not what.died:
            alive[what.group].append(what.block.born)
            events.append(Birth(what.group, what.block))
        else:
            _deaths_at_the_end_of(events).blocks.append(_leave(alive, what))
    return events


def _deaths_at_the_end_of(events: list[Event]) -> Deaths:
    last = events[-1] if events else None
    if isinstance(last, Deaths):
        return last
    deaths = Deaths([])
    events.append(deaths)
    return deaths


def _leave(alive: dict[Group, list[int]], end: _End) -> tuple[Group, int]:
    same = alive[end.group]
    place = same.index(end.block.born)
    del same[place]
    return end.group, len(same) - place


def _ends(trace: Trace) -> Iterator[tuple[int, Any]]:
    for kind, block in zip(trace.kinds(), trace.blocks, strict=True):
        if block.size >= _CRUMBS:
            group = Group(kind, block.section, block.size)
            yield block.born, _End(group, block, died=False)
            if block.died is not None:
                yield block.died, _End(group, block, died=True)


def _notes(trace: Trace) -> Iterator[tuple[int, Note]]:
    yield from ((tick, name) for name, tick in trace.marks.items())
    yield from ((section.start, section) for section in trace.sections)
    yield from ((tick, (name, number)) for tick, name, number in trace.phases)


def _groups(events: list[Event]) -> set[Group]:
    return {event.group for event in events if isinstance(event, Birth)}


def _tokens(events: list[Event], others: list[Event], known: set[Group]) -> list[object]:
    """What must agree between two tapes. What only one of them has depends on the depth and is taken loosely."""
    exact = {_exact(event, known) for event in others}
    tokens = ((_exact(event, known), event) for event in events)
    return [token if token in exact else _loose(event, known) for token, event in tokens]


def _exact(event: Event, known: set[Group]) -> object:
    if isinstance(event, Deaths):
        return frozenset(event.counted(known).items())
    return replace(event, start=0) if isinstance(event, Section) else event


def _loose(event: Event, known: set[Group]) -> object:
    """A block of any size; any number of blocks of these groups."""
    if isinstance(event, Birth):
        return event.group._replace(size=-1)
    return frozenset(event.counted(known)) if isinstance(event, Deaths) else event


def _align(few: list[object], more: list[object]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Which events are the same in both, and the stretches that only the deeper tape has."""
    pairs, stretches = [], []
    j = 0
    for i in range(len(few)):
        skipped = _skip(few, more, i, j)
        if skipped:
            stretches.append((j, j + skipped))
        j += skipped
        pairs.append((i, j))
        j += 1
    if j < len(more):
        stretches.append((j, len(more)))
    if not stretches:
        raise NotExtrapolable
    return pairs, stretches


def _skip(few: list[object], more: list[object], i: int, j: int) -> int:
    """How many events of the deeper tape come before the next one that both have."""
    if j < len(more) and few[i] == more[j]:
        return 0
    best, skipped = 0, 0
    for start in range(j + 1, len(more)):
        run = _agreeing(few, more, i, start)
        if run > best:
            best, skipped = run, start - j
        if best == _SURE:
            break
    if not best:
        raise NotExtrapolable
    return skipped


def _agreeing(few: list[object], more: list[object], i: int, j: int) -> int:
    """How many events in a row are the same from here on."""
    both = zip(few[i : i + _SURE], more[j : j + _SURE], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], both))


# Splice: the pass of one play with the optimizer's steps of another.
#
# An optimizer that steps after the backward pass neither knows nor changes how the gradients came about. So every way
# of computing them and every optimizer are played once, not every pair.


def with_optimizer_of(passing: Trace, stepping: Trace) -> Trace:
    """The tape of `passing` until its pass ends, the steps of `stepping`, and again `passing`."""
    out, back = (_Stretch(trace.marks[PASS_ENDS], trace.marks[STEPS_END]) for trace in (passing, stepping))
    longer = back.length - out.length
    moved = [_moved(block, out, longer) for block in passing.blocks if not out.holds(block.born)]
    taken = [_shifted(block, out.start - back.start) for block in stepping.blocks if back.holds(block.born)]
    state = out.start + stepping.marks[STATE_IS_THERE] - back.start
    return Trace(
        blocks=sorted([*moved, *taken], key=lambda block: block.born),
        phases=[
            *(phase for phase in passing.phases if phase[0] < out.start),
            *_shifted_moments(stepping, back, out.start - back.start),
            *_shifted_moments(passing, _Stretch(out.end, passing.clock + 1), longer),
        ],
        sections=[replace(s, start=out.after(s.start, longer)) for s in passing.sections],
        marks={name: out.after(tick, longer) for name, tick in passing.marks.items()} | {STATE_IS_THERE: state},
        clock=passing.clock + longer,
    )


@dataclass(frozen=True)
class _Stretch:
    """From one tick to another."""

    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start

    def holds(self, tick: int) -> bool:
        return self.start < tick <= self.end

    def after(self, tick: int, longer: int) -> int:
        """Where a tick is when the stretch has become so much longer."""
        return tick + longer if tick >= self.end else tick


def _moved(block: Block, out: _Stretch, longer: int) -> Block:
    died = None if block.died is None else out.after(block.died, longer)
    return block.moved(out.after(block.born, longer), died)


def _shifted(block: Block, by: int) -> Block:
    return block.moved(block.born + by, None if block.died is None else block.died + by)


def _shifted_moments(trace: Trace, of: _Stretch, by: int) -> list[tuple[int, str, int]]:
    return [(start + by, name, section) for start, name, section in trace.phases if of.start <= start < of.end]
