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
from tightfit.i18n import render
from tightfit.messages import Message, listed, msg
from tightfit.report.names import score
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

    def log(self, line: Message) -> None:
        """Print one line, in the language of the command line."""
        self.console.print(f"· {render(line)}", markup=False)

    @contextlib.contextmanager
    def status(self, what: Message) -> Iterator[None]:
        """Show a spinner while something takes some seconds."""
        with self.console.status(f"{render(what)} …"):
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
        self.loss = msg("loss –")
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
            self._line(msg("running the frozen encoder once over {rows:,} rows", rows=total))
            self.rows = self.bar.add_task(render(msg("features")), total=total, about=render(msg("rows")))
            if self.console.is_terminal:
                self.bar.start()
        self.bar.update(self.rows, completed=done, visible=done < total)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        for earlier in self.bar.task_ids:  # a run that returns to a checkpoint starts training again
            self.bar.remove_task(earlier)
        title = render(msg("training"))
        self.task = self.bar.add_task(title, total=state.max_steps, completed=state.global_step, about="")
        if self.console.is_terminal:
            self.bar.start()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        about = f"{render(self.loss)}  {format_bytes(self.meter.probe.now())}"
        self.bar.update(self.task, completed=state.global_step, about=about)
        interval = max(1, state.max_steps // _LINES)
        if not self.console.is_terminal and state.global_step % interval == 0:
            done, total = state.global_step, state.max_steps
            self._line(msg("step {step}/{steps}  {about}", step=done, steps=total, about=about))

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if logs and "loss" in logs:
            self.loss = msg("loss {loss:.4f}", loss=logs["loss"])

    def on_prediction_step(self, *args: Any, **kwargs: Any) -> None:
        self.bar.update(self.task, description=render(msg("evaluating")))

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        self.bar.update(self.task, description=render(msg("training")))
        if metrics:
            scores = format_scores(self.trained_task, metrics)
            self._line(msg("after epoch {epoch:.2f}: {scores}", epoch=state.epoch or 0, scores=scores))

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        self.bar.stop()

    def _line(self, text: Message) -> None:
        self.console.print(f"  {render(text)}", markup=False)


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
        best = find_task(self.comparison.job.task).best
        line = msg("{recipe}: {results}", recipe=row.title, results=_results(row, best))
        self.console.print(f"  {self.number}/{self.count}  {render(line)}", markup=False)

    def _expected(self, row: ComparisonRow) -> float:
        if row.predicted is None or row.predicted.fits is False:
            return _SETUP
        steps = (
            self.comparison.steps
            or self.comparison.job.max_steps
            or row.predicted.steps_per_epoch * self.comparison.job.epochs
        )
        return _SETUP + row.predicted.seconds_per_step * steps


def _results(row: ComparisonRow, best: Metric) -> Message:
    """The results of a row in one line."""
    if row.failed or not row.measurements:
        return row.failed or msg("not measured")
    last = row.measurements[-1]
    found = [
        msg("peak {peak}", peak=format_bytes(last.peak_bytes)),
        msg("{time} per step", time=format_seconds(last.seconds_per_step)),
    ]
    if best.key in last.metrics:
        found.append(score(best, last.metrics[best.key]))
    return listed(found)
