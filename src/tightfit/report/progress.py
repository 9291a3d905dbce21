"""Progress of training runs and comparisons on stderr: a bar in a terminal, some lines in a log file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tightfit.comparison.comparison import Comparison, ComparisonRow
from tightfit.engine.meter import Meter
from tightfit.report.terminal import format_scores
from tightfit.strategies.recipe import Recipe
from tightfit.tasks import find_task
from tightfit.tasks.base import Metric, Task
from tightfit.units import format_bytes, format_seconds

_LINES = 10  # per run, where stderr is not a terminal


class Terminal:
    """Log lines and progress bars on stderr, so that stdout has nothing but results; silent if `quiet`."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)

    def log(self, line: str) -> None:
        """Print one line."""
        self.console.print(f"· {line}", markup=False)

    @contextlib.contextmanager
    def status(self, what: str) -> Iterator[None]:
        """Show a spinner while something takes some seconds."""
        with self.console.status(f"{what} …"):
            yield

    @contextlib.contextmanager
    def progress(self, meter: Meter, task: Task) -> Iterator[Progress]:
        """The progress bar of a training run; it is removed also after an error."""
        progress = Progress(self.console, meter, task)
        try:
            yield progress
        finally:
            progress.bar.stop()

    def comparison(self, comparison: Comparison, recipes: list[Recipe], seeds: int) -> ComparisonProgress:
        """The progress bar of a comparison."""
        return ComparisonProgress(self.console, comparison, recipes, seeds)


class Progress(TrainerCallback):
    """Steps, loss, memory and remaining time of a training run."""

    def __init__(self, console: Console, meter: Meter, task: Task) -> None:
        self.console, self.meter, self.trained_task = console, meter, task
        self.loss = "loss –"
        self.bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[about]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )

    def on_features(self, done: int, total: int) -> None:
        """Count the rows that the frozen encoder has processed, before training starts."""
        if not self.bar.tasks:
            self._line(f"running the frozen encoder once over {total:,} rows")
            self.rows = self.bar.add_task("features", total=total, about="rows")
            if self.console.is_terminal:
                self.bar.start()
        self.bar.update(self.rows, completed=done, visible=done < total)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        for earlier in self.bar.task_ids:  # a run that returns to a checkpoint starts training again
            self.bar.remove_task(earlier)
        self.task = self.bar.add_task("training", total=state.max_steps, completed=state.global_step, about="")
        if self.console.is_terminal:
            self.bar.start()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        about = f"{self.loss}  {format_bytes(self.meter.probe.now())}"
        self.bar.update(self.task, completed=state.global_step, about=about)
        interval = max(1, state.max_steps // _LINES)
        if not self.console.is_terminal and state.global_step % interval == 0:
            self._line(f"step {state.global_step}/{state.max_steps}  {about}")

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if logs and "loss" in logs:
            self.loss = f"loss {logs['loss']:.4f}"

    def on_prediction_step(self, *args: Any, **kwargs: Any) -> None:
        self.bar.update(self.task, description="evaluating")

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        self.bar.update(self.task, description="training")
        if metrics:
            self._line(f"after epoch {state.epoch or 0:.2f}: {format_scores(self.trained_task, metrics)}")

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        self.bar.stop()

    def _line(self, text: str) -> None:
        self.console.print(f"  {text}", markup=False)


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
        self.bar.update(self.task, description=f"{self.number}/{self.count}  {row.title}")

    def on_tick(self, seconds: float) -> None:
        """Advance the bar to the seconds that the row has taken so far."""
        self.bar.update(self.task, completed=self.done + min(seconds, 0.98 * self.expected))

    def end(self, row: ComparisonRow) -> None:
        """Print the results of the row, or why it failed."""
        self.done += self.expected
        self.bar.update(self.task, completed=self.done)
        best = find_task(self.comparison.job.task).best
        self.console.print(f"  {self.number}/{self.count}  {row.title}: {_about(row, best)}", markup=False)

    def _expected(self, row: ComparisonRow) -> float:
        if row.predicted is None or row.predicted.fits is False:
            return _SETUP
        steps = (
            self.comparison.steps
            or self.comparison.job.max_steps
            or row.predicted.steps_per_epoch * self.comparison.job.epochs
        )
        return _SETUP + row.predicted.seconds_per_step * steps


def _about(row: ComparisonRow, best: Metric) -> str:
    """The results of a row in one line."""
    if row.failed or not row.measurements:
        return row.failed or "not measured"
    last = row.measurements[-1]
    score = f", {best.title} {last.metrics[best.key]:.4f}" if best.key in last.metrics else ""
    return f"peak {format_bytes(last.peak_bytes)}, {format_seconds(last.seconds_per_step)} per step{score}"
