"""Tape: every block of memory a training takes and gives back, in order, with what it is for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tightfit.meter import BETWEEN
from tightfit.strategy import Kind

KINDS = list(Kind)


@dataclass
class Block:
    """One piece of memory from its birth to its death, in ticks of the tape."""

    size: int
    born: int
    died: int | None = None
    kind: Kind | None = None
    """None until known: kept from forward to backward it is an activation, else temporary."""


@dataclass
class Tape:
    """Blocks and the moments they live through."""

    blocks: list[Block] = field(default_factory=list)
    moments: list[tuple[int, str]] = field(default_factory=list)
    """When each moment began."""
    clock: int = 0

    def take(self, size: int) -> Block:
        """A block is born."""
        self.clock += 1
        block = Block(size, self.clock)
        self.blocks.append(block)
        return block

    def give_back(self, block: Block) -> None:
        """A block dies."""
        self.clock += 1
        block.died = self.clock

    def begin(self, moment: str) -> None:
        """All that follows belongs to this moment."""
        self.moments.append((self.clock, moment))

    @contextlib.contextmanager
    def moment(self, name: str) -> Iterator[None]:
        """Everything inside belongs to this moment."""
        self.begin(name)
        yield
        self.begin(BETWEEN)

    def kinds(self) -> list[Kind]:
        """What each block is for; a block that outlives its forward pass is an activation."""
        ends = self._forward_ends()
        return [block.kind or _kind(block, ends) for block in self.blocks]

    def bytes_over_time(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Live bytes at every tick, a column for each kind."""
        change = np.zeros((self.clock + 2, len(KINDS)), dtype=np.int64)
        columns = np.array([KINDS.index(kind) for kind in self.kinds()], dtype=np.int64)
        sizes = np.array([block.size for block in self.blocks], dtype=np.int64)
        born = np.array([block.born for block in self.blocks])
        died = np.array([block.died or self.clock + 1 for block in self.blocks])
        np.add.at(change, (born, columns), sizes)
        np.add.at(change, (died, columns), -sizes)
        return change.cumsum(axis=0)

    def spans(self) -> list[tuple[str, int, int]]:
        """Moment, first tick, last tick."""
        ends = [start for start, _ in self.moments[1:]] + [self.clock]
        return [(name, start, end) for (start, name), end in zip(self.moments, ends, strict=True)]

    def _forward_ends(self) -> list[tuple[int, int]]:
        return [(start, end) for name, start, end in self.spans() if name == "forward"]


def _kind(block: Block, forwards: list[tuple[int, int]]) -> Kind:
    for start, end in forwards:
        if start < block.born <= end:
            return Kind.ACTIVATIONS if block.died is None or block.died > end else Kind.TEMPORARY
    return Kind.TEMPORARY
