"""Allocation trace: every memory block that training allocates and frees, in order, with its purpose."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tightfit.engine.meter import OTHER
from tightfit.strategies.base import MemoryKind


class Buffer(NamedTuple):
    """A temporary buffer of a kernel, whose size grows with the batch between two bounds."""

    size: int
    least: float = 0
    """If it would be smaller, the kernel does without."""
    most: float = math.inf
    after_result: bool = False
    """Whether the kernel allocates its result before it."""
    freed_first: bool = False
    """Whether it is freed before the next buffer is allocated."""


Scratch = Callable[[Any, tuple[Any, ...]], list[Buffer]]
"""The temporary buffers that a device's kernel allocates while it runs an op."""


@dataclass(slots=True)
class Block:
    """One memory block, from its allocation to its release, in ticks of the trace."""

    size: int
    alloc_tick: int
    section: int
    """The section in which it was allocated; -1 for none."""
    free_tick: int | None = None
    kind: MemoryKind | None = None
    """None until known: a block kept from forward to backward is an activation, any other is temporary."""
    owner: str | int | None = None
    """The module or parameter it belongs to, where known; an autograd sequence number until the trace is complete."""
    shape: tuple[int, ...] | None = None
    """Shape of the tensor that it was allocated for."""
    bounds: tuple[float, float] = (0, math.inf)
    """Of a buffer: the sizes that its size is between; its own is what it would be without them."""

    def moved(self, alloc_tick: int, free_tick: int | None) -> Block:
        """The same block at other ticks; `replace` takes three times as long, and there are tens of thousands."""
        return Block(self.size, alloc_tick, self.section, free_tick, self.kind, self.owner, self.shape, self.bounds)


@dataclass(frozen=True)
class Section:
    """A part of the trace in which one micro-batch goes through the model."""

    name: str
    rows: int
    length: int
    start: int


@dataclass
class Trace:
    """Blocks, with the phases and sections in which they were allocated."""

    blocks: list[Block] = field(default_factory=list)
    phases: list[tuple[int, str, int]] = field(default_factory=list)
    """First tick, name and section of each phase."""
    sections: list[Section] = field(default_factory=list)
    marks: dict[str, int] = field(default_factory=dict)
    """Named ticks."""
    tick: int = 0
    _section: int = -1

    @property
    def current_section(self) -> int:
        """Index of the section being recorded; -1 for none."""
        return self._section

    def alloc(self, size: int) -> Block:
        """Record an allocation."""
        self.tick += 1
        block = Block(size, self.tick, self._section)
        self.blocks.append(block)
        return block

    def alloc_buffer(self, buffer: Buffer) -> Block:
        """Record the allocation of a kernel's buffer."""
        block = self.alloc(buffer.size)
        block.bounds = buffer.least, buffer.most
        return block

    def alloc_workspace(self, size: int) -> None:
        """Record memory that a library keeps from now on, whatever the micro-batch."""
        block = self.alloc(size)
        block.section, block.kind = -1, MemoryKind.TEMPORARY

    def free(self, block: Block) -> None:
        """Record the release of a block."""
        self.tick += 1
        block.free_tick = self.tick

    def start_phase(self, phase: str) -> None:
        """Start a phase, which lasts until the next one starts."""
        self.phases.append((self.tick, phase, self._section))

    def mark(self, name: str) -> None:
        """Name a tick of its own, on which nothing else happens."""
        self.tick += 1
        self.marks[name] = self.tick

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Everything inside belongs to this phase."""
        self.start_phase(name)
        yield
        self.start_phase(OTHER)

    @contextlib.contextmanager
    def section(self, name: str, rows: int, length: int) -> Iterator[None]:
        """Everything inside is computed for one micro-batch."""
        self._section = len(self.sections)
        self.sections.append(Section(name, rows, length, self.tick))
        try:
            yield
        finally:
            self._section = -1

    def kinds(self) -> list[MemoryKind]:
        """The memory kind of each block; a block that outlives its forward pass is an activation."""
        forwards = [(start, end) for name, start, end, _ in self.spans() if name == "forward"]
        return [block.kind or _kind(block, forwards) for block in self.blocks]

    def spans(self) -> list[tuple[str, int, int, int]]:
        """Name, first tick, last tick and section of each phase."""
        ends = [start for start, _, _ in self.phases[1:]] + [self.tick]
        return [(name, start, end, section) for (start, name, section), end in zip(self.phases, ends, strict=True)]


def _kind(block: Block, forwards: list[tuple[int, int]]) -> MemoryKind:
    for start, end in forwards:
        if start < block.alloc_tick <= end:
            return MemoryKind.ACTIVATIONS if block.free_tick is None or block.free_tick > end else MemoryKind.TEMPORARY
    return MemoryKind.TEMPORARY
