"""Bars and times of progress on stderr: rows done, elapsed and remaining time."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, TextColumn
from rich.progress import Progress as Bar
from rich.progress import Task as BarTask
from rich.text import Text

from tightfit.i18n import render
from tightfit.messages import Message, msg
from tightfit.units import format_seconds

_LINES = 10  # per run, where stderr is not a terminal
_LONGEST_SILENCE = 300.0  # seconds


class _Clock(ProgressColumn):
    """Elapsed and remaining time, counted on between two updates: a step may take minutes."""

    def render(self, task: BarTask) -> Text:
        left = task.fields.get("left_until")
        seconds = None if left is None else max(0.0, left - time.monotonic())
        return Text(f"{_clock(task.elapsed or 0.0)}<{'-:--' if seconds is None else _clock(seconds)}")


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def new_bar(console: Console) -> Bar:
    """A bar with counts, times and a text about the rest."""
    columns = TextColumn("{task.description}"), BarColumn(None), MofNCompleteColumn(), _Clock()
    return Bar(*columns, TextColumn("{task.fields[about]}"), console=console, transient=True)


def remove_bar(bar: Bar) -> None:
    """Stop it, if it was started."""
    if bar.live.is_started:  # rich prints an empty line where there was none
        bar.stop()


class Pace:
    """How long the rest takes, from what was done since the start, and when the next line is due."""

    def __init__(self, total: int, done: int = 0) -> None:
        self.total, self.first = total, done
        self.started = self.last_line = time.monotonic()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.started

    def left(self, done: int) -> float:
        """Seconds, at the mean speed until now: evaluations and checkpoints count."""
        return (self.total - done) * self.elapsed / max(1, done - self.first)

    def line_is_due(self, done: int, before: int) -> bool:
        """After a tenth of the whole and after some minutes; the first step has a line too, with the time left."""
        passed = done * _LINES // self.total > before * _LINES // self.total
        if not passed and before > self.first and time.monotonic() - self.last_line < _LONGEST_SILENCE:
            return False
        self.last_line = time.monotonic()
        return True

    def times(self, done: int) -> Message:
        """Elapsed and remaining time."""
        elapsed, left = format_seconds(self.elapsed), format_seconds(self.left(done))
        return msg("{elapsed} elapsed, {left} left", elapsed=elapsed, left=left)


class RowProgress:
    """Rows done and remaining time; a bar in a terminal, else lines."""

    def __init__(self, console: Console, what: Message, on_start: Callable[[], None] = lambda: None) -> None:
        self.console, self.what, self.on_start = console, what, on_start
        self.bar = new_bar(console)
        self.pace: Pace | None = None
        self.done = 0

    def __call__(self, done: int, total: int) -> None:
        """Called with the rows done and the rows in total."""
        if self.pace is None:
            self.pace = Pace(total)
            self.on_start()
            self.task = self.bar.add_task(render(self.what), total=total, about=render(msg("rows")))
            if self.console.is_terminal:
                self.bar.start()
        left_until = time.monotonic() + self.pace.left(done) if done else None
        self.bar.update(self.task, completed=done, left_until=left_until)
        if not self.console.is_terminal and done and self.pace.line_is_due(done, self.done):
            times = self.pace.times(done)
            line = msg(
                "{what}: {done:,} of {total:,} rows, {times}", what=self.what, done=done, total=total, times=times
            )
            self.console.print(f"  {render(line)}", markup=False)
        self.done = done
        if done >= total:
            self.stop()

    def stop(self) -> None:
        """Remove the bar."""
        remove_bar(self.bar)
