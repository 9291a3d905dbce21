"""Splice: the pass of one play with the optimizer's steps of another.

An optimizer that steps after the backward pass neither knows nor changes how the gradients came about. So every way
of computing them and every optimizer are played once, not every pair.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tightfit.rehearsal.tape import Block, Tape
from tightfit.rehearsal.timeline import PASS_ENDS, STATE_IS_THERE, STEPS_END


def splice(passing: Tape, stepping: Tape) -> Tape:
    """The tape of `passing` until its pass ends, the steps of `stepping`, and again `passing`."""
    out, back = (_Stretch(tape.marks[PASS_ENDS], tape.marks[STEPS_END]) for tape in (passing, stepping))
    longer = back.length - out.length
    moved = [_moved(block, out, longer) for block in passing.blocks if not out.holds(block.born)]
    taken = [_shifted(block, out.start - back.start) for block in stepping.blocks if back.holds(block.born)]
    state = out.start + stepping.marks[STATE_IS_THERE] - back.start
    return Tape(
        blocks=sorted([*moved, *taken], key=lambda block: block.born),
        moments=[
            *(moment for moment in passing.moments if moment[0] < out.start),
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


def _shifted_moments(tape: Tape, of: _Stretch, by: int) -> list[tuple[int, str, int]]:
    return [(start + by, name, section) for start, name, section in tape.moments if of.start <= start < of.end]
