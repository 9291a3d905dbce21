"""Tape: every block of memory a training takes and gives back, in order, with what it is for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from tightfit.engine.meter import OTHER
from tightfit.strategies.base import MemoryKind


@dataclass(slots=True)
class Block:
    """One piece of memory from its birth to its death, in ticks of the tape."""

    size: int
    born: int
    section: int
    """The section of the data it was made in; -1 for none."""
    died: int | None = None
    kind: MemoryKind | None = None
    """None until known: kept from forward to backward it is an activation, else temporary."""
    owner: str | int | None = None
    """The module or the parameter it belongs to, where that is known; a number until the play is over."""
    shape: tuple[int, ...] | None = None
    """Of the tensor that it was made for."""

    def moved(self, born: int, died: int | None) -> Block:
        """The same at another time. There are tens of thousands, and `replace` takes three times as long."""
        return Block(self.size, born, self.section, died, self.kind, self.owner, self.shape)


@dataclass(frozen=True)
class Section:
    """A stretch of the tape in which one slice of data goes through the model."""

    name: str
    rows: int
    length: int
    start: int


@dataclass
class Trace:
    """Blocks, the moments they live through and the slices of data they belong to."""

    blocks: list[Block] = field(default_factory=list)
    phases: list[tuple[int, str, int]] = field(default_factory=list)
    """When each moment began, and in which section."""
    sections: list[Section] = field(default_factory=list)
    marks: dict[str, int] = field(default_factory=dict)
    """Ticks with a name."""
    clock: int = 0
    _section: int = -1

    @property
    def place(self) -> int:
        """The section that is being written; -1 for none."""
        return self._section

    def take(self, size: int) -> Block:
        """A block is born."""
        self.clock += 1
        block = Block(size, self.clock, self._section)
        self.blocks.append(block)
        return block

    def give_back(self, block: Block) -> None:
        """A block dies."""
        self.clock += 1
        block.died = self.clock

    def begin(self, phase: str) -> None:
        """This moment lasts until the next one begins."""
        self.phases.append((self.clock, phase, self._section))

    def mark(self, name: str) -> None:
        """Remember this tick; it is its own, so that nothing else happens on it."""
        self.clock += 1
        self.marks[name] = self.clock

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Everything inside belongs to this moment."""
        self.begin(name)
        yield
        self.begin(OTHER)

    @contextlib.contextmanager
    def section(self, name: str, rows: int, length: int) -> Iterator[None]:
        """Everything inside is done for one slice of data."""
        self._section = len(self.sections)
        self.sections.append(Section(name, rows, length, self.clock))
        try:
            yield
        finally:
            self._section = -1

    def kinds(self) -> list[MemoryKind]:
        """What each block is for; a block that outlives its forward pass is an activation."""
        forwards = [(start, end) for name, start, end, _ in self.spans() if name == "forward"]
        return [block.kind or _kind(block, forwards) for block in self.blocks]

    def spans(self) -> list[tuple[str, int, int, int]]:
        """Moment, first tick, last tick, section."""
        ends = [start for start, _, _ in self.phases[1:]] + [self.clock]
        return [(name, start, end, section) for (start, name, section), end in zip(self.phases, ends, strict=True)]


def _kind(block: Block, forwards: list[tuple[int, int]]) -> MemoryKind:
    for start, end in forwards:
        if start < block.born <= end:
            return MemoryKind.ACTIVATIONS if block.died is None or block.died > end else MemoryKind.TEMPORARY
    return MemoryKind.TEMPORARY
