"""Progress of a training: the bar with time left, loss and memory; in a log file a line now and then."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tightfit.comparison.comparison import Comparison, ComparisonRow
from tightfit.engine.meter import Meter
from tightfit.strategies.recipe import Recipe
from tightfit.units import format_bytes, format_seconds

_LINES = 10  # how often a log file hears of a run


class Progress(TrainerCallback):
    """Shows steps, loss and memory while transformers trains."""

    def __init__(self, console: Console, meter: Meter) -> None:
        self.console, self.meter = console, meter
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
        """Rows that went through the frozen part of the model, before the training."""
        if not self.bar.tasks:
            self._line(f"running the frozen part once over {total:,} rows")
            self.rows = self.bar.add_task("features", total=total, about="rows")
            if self.console.is_terminal:
                self.bar.start()
        self.bar.update(self.rows, completed=done, visible=done < total)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        for earlier in self.bar.task_ids:  # a run that goes back to a checkpoint begins once more
            self.bar.remove_task(earlier)
        self.task = self.bar.add_task("training", total=state.max_steps, completed=state.global_step, about="")
        if self.console.is_terminal:
            self.bar.start()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        about = f"{self.loss}  {format_bytes(self.meter.gauge.now())}"
        self.bar.update(self.task, completed=state.global_step, about=about)
        lines = max(1, state.max_steps // _LINES)
        if not self.console.is_terminal and state.global_step % lines == 0:
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
            scores = ", ".join(f"{name} {metrics[f'eval_{name}']:.4f}" for name in ("f1", "accuracy", "loss"))
            self._line(f"after epoch {state.epoch or 0:.2f}: {scores}")

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        self.bar.stop()

    def _line(self, text: str) -> None:
        self.console.print(f"  {text}", markup=False)


# The screen: lines and progress on standard error, so that standard output stays free for results.


class Terminal:
    """Says what is going on, or nothing when quiet."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)
        _silence_libraries()

    def log(self, line: str) -> None:
        """One line for the user."""
        self.console.print(f"· {line}", markup=False)

    @contextlib.contextmanager
    def status(self, what: str) -> Iterator[None]:
        """Something that takes a moment."""
        with self.console.status(f"{what} …"):
            yield

    @contextlib.contextmanager
    def progress(self, meter: Meter) -> Iterator[Progress]:
        """The training's progress bar; the terminal is given back whatever happens."""

        progress = Progress(self.console, meter)
        try:
            yield progress
        finally:
            progress.bar.stop()

    def comparison(self, comparison: Comparison, recipes: list[Recipe], seeds: int) -> ComparisonProgress:
        """The progress bar of a ladder."""
        return ComparisonProgress(self.console, comparison, recipes, seeds)


def _silence_libraries() -> None:
    """The libraries' own progress bars and reports would tear ours apart."""
    from transformers.utils import logging

    datasets = sys.modules.get("datasets")
    if datasets is not None:
        datasets.disable_progress_bars()
    else:  # it takes a second to import, and few commands read what it reads
        os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    logging.disable_progress_bar()
    logging.set_verbosity_error()


# Progress of a ladder: which rung is on, how long it will take; each rung's figures as soon as they are there.


_AROUND = 15.0  # seconds to start a process, read the data and save the model; the bar mends itself on the way


class ComparisonProgress:
    """The bar counts seconds as they were foretold: a slow machine shows in its pace."""

    def __init__(self, console: Console, comparison: Comparison, recipes: list[Recipe], seeds: int) -> None:
        self.console, self.comparison = console, comparison
        rows = [row for recipe in recipes if (row := comparison.row(recipe))]
        due = [row for row in rows for _ in range(seeds - len(row.measurements))]
        self.bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self.task = self.bar.add_task("", total=sum(self._expected(row) for row in due) or 1)
        self.done, self.number, self.count = 0.0, 0, len(due)

    def __enter__(self) -> ComparisonProgress:
        if self.console.is_terminal:
            self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def begin(self, row: ComparisonRow) -> None:
        """A rung is on."""
        self.number += 1
        self.expected = self._expected(row)
        self.bar.update(self.task, description=f"{self.number}/{self.count}  {row.title}")

    def on_tick(self, seconds: float) -> None:
        """It has been on for so long."""
        self.bar.update(self.task, completed=self.done + min(seconds, 0.98 * self.expected))

    def end(self, row: ComparisonRow) -> None:
        """Its figures, or what happened to it."""
        self.done += self.expected
        self.bar.update(self.task, completed=self.done)
        self.console.print(f"  {self.number}/{self.count}  {row.title}: {about(row)}", markup=False)

    def _expected(self, row: ComparisonRow) -> float:
        if row.predicted is None or row.predicted.fits is False:
            return _AROUND
        steps = (
            self.comparison.steps
            or self.comparison.job.max_steps
            or row.predicted.steps_per_epoch * self.comparison.job.epochs
        )
        return _AROUND + row.predicted.seconds_per_step * steps


def about(row: ComparisonRow) -> str:
    """A rung in a line."""
    if row.failed or not row.measurements:
        return row.failed or "not measured"
    last = row.measurements[-1]
    score = f", f1 {last.metrics['eval_f1']:.4f}" if "eval_f1" in last.metrics else ""
    return f"peak {format_bytes(last.peak_bytes)}, {format_seconds(last.seconds_per_step)} a step{score}"
