"""Progress of a training: the bar with time left, loss and memory; in a log file a line now and then."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tightfit.meter import Meter
from tightfit.units import format_bytes

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
