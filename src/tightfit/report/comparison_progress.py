"""Progress of a comparison on stderr: a bar in predicted seconds, and the results of each row."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from tightfit.comparison.comparison import Comparison, ComparisonRow
from tightfit.i18n import render
from tightfit.messages import Message, listed, msg
from tightfit.report.names import scores_beside_constant
from tightfit.strategies.recipe import Recipe
from tightfit.tasks.quality import Scoring
from tightfit.units import format_bytes, format_seconds

_SETUP = 15.0  # seconds to start a process, read the data and save the model


class ComparisonProgress:
    """Progress of a comparison in predicted seconds, with the results of each row when it is measured."""

    def __init__(self, console: Console, comparison: Comparison, recipes: list[Recipe], seeds: int) -> None:
        self.console, self.comparison = console, comparison
        rows = [row for recipe in recipes if (row := comparison.row(recipe))]
        pending = [row for row in rows for _ in range(seeds - len(row.measurements))]
        self.bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self.task = self.bar.add_task("", total=sum(self._expected(row) for row in pending) or 1)
        self.done, self.number, self.count = 0.0, 0, len(pending)

    def __enter__(self) -> ComparisonProgress:
        if self.console.is_terminal:
            self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def begin(self, row: ComparisonRow) -> None:
        """Show the row whose training starts."""
        self.number += 1
        self.expected = self._expected(row)
        self.bar.update(self.task, description=f"{self.number}/{self.count}  {render(row.title)}")

    def on_tick(self, seconds: float) -> None:
        """Advance the bar to the seconds that the row has taken so far."""
        self.bar.update(self.task, completed=self.done + min(seconds, 0.98 * self.expected))

    def end(self, row: ComparisonRow) -> None:
        """Print the results of the row, or why it failed."""
        self.done += self.expected
        self.bar.update(self.task, completed=self.done)
        line = msg("{recipe}: {results}", recipe=row.title, results=_results(row, self.comparison.scoring))
        self.console.print(f"  {self.number}/{self.count}  {render(line)}", markup=False)

    def _expected(self, row: ComparisonRow) -> float:
        if row.predicted is None or row.predicted.fits is False:
            return _SETUP
        steps = (
            self.comparison.steps
            or self.comparison.job.max_steps
            or row.predicted.steps_per_epoch * self.comparison.job.epochs
        )
        return _SETUP + (row.predicted.seconds_per_step or 1.0) * steps


def _results(row: ComparisonRow, scoring: Scoring) -> Message:
    """The results of a row in one line."""
    if row.failed or not row.measurements:
        return row.failed or msg("not measured")
    last = row.measurements[-1]
    found = [
        msg("peak {peak}", peak=format_bytes(last.peak_bytes)),
        msg("{time} per step", time=format_seconds(last.seconds_per_step)),
    ]
    if last.metrics:
        found.append(scores_beside_constant(scoring, last.metrics, scoring.measured(last.metrics)[:1]))
    return listed(found)
