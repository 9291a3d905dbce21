"""Trainer callback: checkpoints within an epoch, and stopping on a signal."""

from __future__ import annotations

import contextlib
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from transformers import IntervalStrategy, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tightfit.errors import BadInput, Interrupted
from tightfit.messages import Message, in_sequence, msg
from tightfit.runs.folder import resume_command

_MAX_INTERVAL = 1e9
_UNITS = {"step": "steps", "steps": "steps", "minute": "minutes", "minutes": "minutes", "min": "minutes"}


@dataclass(frozen=True)
class SaveInterval:
    """A number of steps or minutes."""

    number: float
    unit: str

    @classmethod
    def parse(cls, text: str) -> SaveInterval:
        """From `100 steps` or `30 minutes`."""
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", text.lower())
        unit = _UNITS.get(found[2]) if found else None
        number = float(found[1]) if found else 0.0
        if unit is None or not 0 < number < _MAX_INTERVAL or (unit == "steps" and number != int(number)):
            raise BadInput(
                msg("--save-every '{text}' is not an interval: write '100 steps' or '30 minutes'.", text=text)
            )
        return cls(number, unit)

    def is_due(self, step: int, last_saved: float) -> bool:
        """Whether to save after this step."""
        if self.unit == "steps":
            return step % int(self.number) == 0
        return time.monotonic() - last_saved >= 60 * self.number


class SaveAndStop(TrainerCallback):
    """Saves checkpoints at an interval; after a signal, saves one more and stops the run."""

    def __init__(self, folder: Path, every: SaveInterval, log: Callable[[Message], None]) -> None:
        self.folder, self.every, self.log = folder, every, log
        self.signal: int | None = None
        self._last_saved = time.monotonic()
        self._finished = False

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        # The last step of an epoch is saved after its evaluation: resuming from an earlier checkpoint would skip it.
        ends_epoch = args.eval_strategy == IntervalStrategy.EPOCH and float(state.epoch or 0).is_integer()
        ends_epoch = ends_epoch or state.global_step >= state.max_steps
        due = self.signal is not None or self.every.is_due(state.global_step, self._last_saved)
        if due and not ends_epoch:
            control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._last_saved = time.monotonic()
        if self.signal is not None:
            stopped = msg(
                "stopped after step {step} of {steps}; checkpoint-{step} is written. Continue with: {command}",
                step=state.global_step,
                steps=state.max_steps,
                command=resume_command(self.folder),
            )
            raise Interrupted(stopped, self.signal)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._finished = True

    def raise_if_stopped(self) -> None:
        """Stop between two batches of the feature cache, where there is no checkpoint to save."""
        if self.signal is not None:
            command = resume_command(self.folder)
            stopped = msg("stopped while features were computed. Continue with: {command}", command=command)
            raise Interrupted(stopped, self.signal)

    @contextlib.contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM stop the run after its next checkpoint; a second Ctrl-C stops it immediately."""
        if threading.current_thread() is not threading.main_thread():
            yield  # Python allows signal handlers in the main thread only
            return
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number
        line = msg("stopping: a checkpoint is written after this step.")
        if self._finished:
            line = msg("training has finished: the model is being written.")
        again = msg("Press Ctrl-C again to exit immediately.")
        self.log(in_sequence(line, again) if number == signal.SIGINT else line)
