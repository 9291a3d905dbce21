"""Progress of a training run on stderr: a bar in a terminal, lines in a log file."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tightfit.activity import ENCODING, EVALUATING, TRAINING
from tightfit.engine.meter import Meter
from tightfit.i18n import render
from tightfit.messages import Message, msg
from tightfit.report.bars import Pace, RowProgress, new_bar, remove_bar
from tightfit.report.names import in_a_line
from tightfit.tasks.quality import Scoring
from tightfit.units import format_bytes, format_seconds

_RECENT = 10  # steps


class Progress(TrainerCallback):
    """Steps, loss, memory and remaining time of a training run."""

    def __init__(self, console: Console, meter: Meter, scoring: Scoring) -> None:
        self.console, self.meter, self.scoring = console, meter, scoring
        self.features = RowProgress(console, ENCODING)
        self.bar = new_bar(console)
        self.loss = 0.0
        self.recent: deque[float] = deque(maxlen=_RECENT)
        """The losses of the last steps, for the bar."""
        self.unreported: list[float] = []
        """The losses since the last line."""
        self.step_seconds: deque[float] = deque(maxlen=_RECENT)

    def on_loss(self, loss: float) -> None:
        """Called with the loss of each batch; in the pre-flight too, before the first step."""
        self.loss = loss

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        for earlier in self.bar.task_ids:  # a run that returns to a checkpoint starts training again
            self.bar.remove_task(earlier)
        self.pace: Pace | None = None

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.pace is None:  # now: the pre-flight is over
            self.pace = Pace(state.max_steps, state.global_step)
            title = render(TRAINING)
            self.task = self.bar.add_task(title, total=state.max_steps, completed=state.global_step, about="")
            if self.console.is_terminal:
                self.bar.start()
        self.step_started = time.monotonic()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        assert self.pace is not None
        done = state.global_step
        self.step_seconds.append(time.monotonic() - self.step_started)
        self.recent.append(self.loss)
        self.unreported.append(self.loss)
        left_until = time.monotonic() + self.pace.left(done)
        self.bar.update(self.task, completed=done, left_until=left_until, about=render(self._about(state, self.recent)))
        if not self.console.is_terminal and self.pace.line_is_due(done, done - 1):
            about, times = self._about(state, self.unreported), self.pace.times(done)
            total = state.max_steps
            self._line(msg("step {step}/{steps}  {about}  {times}", step=done, steps=total, about=about, times=times))
            self.unreported = []

    def _about(self, state: TrainerState, losses: Sequence[float]) -> Message:
        return msg(
            "epoch {epoch:.2f}  loss {loss:.4f}  {seconds} per step  {memory}",
            epoch=state.epoch or 0.0,
            loss=sum(losses) / len(losses),
            seconds=format_seconds(sum(self.step_seconds) / len(self.step_seconds)),
            memory=format_bytes(self.meter.probe.now()),
        )

    def on_prediction_step(self, *args: Any, **kwargs: Any) -> None:
        if self.pace is not None:  # not in the pre-flight
            self.bar.update(self.task, description=render(EVALUATING))

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if self.pace is not None:
            self.bar.update(self.task, description=render(TRAINING))
        if metrics:
            scores = in_a_line(self.scoring, metrics)
            self._line(msg("after epoch {epoch:.2f}: {scores}", epoch=state.epoch or 0, scores=scores))

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        self.stop()

    def stop(self) -> None:
        """Remove the bars."""
        self.features.stop()
        remove_bar(self.bar)

    def _line(self, text: Message) -> None:
        self.console.print(f"  {render(text)}", markup=False)
