"""Progress of a ladder: which rung is on, how long it will take; each rung's figures as soon as they are there."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tightfit.ladders.record import Ladder, Row
from tightfit.recipe import Recipe
from tightfit.units import format_bytes, format_seconds

_AROUND = 15.0  # seconds to start a process, read the data and save the model; the bar mends itself on the way


class Climbing:
    """The bar counts seconds as they were foretold: a slow machine shows in its pace."""

    def __init__(self, console: Console, ladder: Ladder, recipes: list[Recipe], seeds: int) -> None:
        self.console, self.ladder = console, ladder
        rows = [row for recipe in recipes if (row := ladder.row(recipe))]
        due = [row for row in rows for _ in range(seeds - len(row.climbs))]
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self.task = self.bar.add_task("", total=sum(self._expected(row) for row in due) or 1)
        self.done, self.number, self.count = 0.0, 0, len(due)

    def __enter__(self) -> Climbing:
        if self.console.is_terminal:
            self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def begin(self, row: Row) -> None:
        """A rung is on."""
        self.number += 1
        self.expected = self._expected(row)
        self.bar.update(self.task, description=f"{self.number}/{self.count}  {row.title}")

    def glance(self, seconds: float) -> None:
        """It has been on for so long."""
        self.bar.update(self.task, completed=self.done + min(seconds, 0.98 * self.expected))

    def end(self, row: Row) -> None:
        """Its figures, or what happened to it."""
        self.done += self.expected
        self.bar.update(self.task, completed=self.done)
        self.console.print(f"  {self.number}/{self.count}  {row.title}: {about(row)}", markup=False)

    def _expected(self, row: Row) -> float:
        if row.foretold is None or row.foretold.fits is False:
            return _AROUND
        steps = self.ladder.steps or self.ladder.job.max_steps or row.foretold.steps_per_epoch * self.ladder.job.epochs
        return _AROUND + row.foretold.seconds_per_step * steps


def about(row: Row) -> str:
    """A rung in a line."""
    if row.failed or not row.climbs:
        return row.failed or "not measured"
    last = row.climbs[-1]
    score = f", f1 {last.metrics['eval_f1']:.4f}" if "eval_f1" in last.metrics else ""
    return f"peak {format_bytes(last.peak_bytes)}, {format_seconds(last.seconds_per_step)} a step{score}"
