"""Pauses: when a run writes a checkpoint between two epochs' ends: now and then, and when it is told to stop."""

from __future__ import annotations

import contextlib
import re
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tightfit.errors import BadInput, Stopped

_NEVER = 1e9
_UNITS = {"step": "steps", "steps": "steps", "minute": "minutes", "minutes": "minutes", "min": "minutes"}
_STOPPING = "stopping: a checkpoint is written after this step"


@dataclass(frozen=True)
class SaveInterval:
    """So many steps or minutes."""

    number: float
    unit: str

    @classmethod
    def parse(cls, text: str) -> SaveInterval:
        """From `100 steps` or `30 minutes`."""
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", text.lower())
        unit = _UNITS.get(found[2]) if found else None
        number = float(found[1]) if found else 0.0
        if unit is None or not 0 < number < _NEVER or (unit == "steps" and number != int(number)):
            raise BadInput(f"--save-every '{text}' is no interval: write '100 steps' or '30 minutes'.")
        return cls(number, unit)

    def is_due(self, step: int, last_saved: float) -> bool:
        """Whether it is time, after this step."""
        if self.unit == "steps":
            return step % int(self.number) == 0
        return time.monotonic() - last_saved >= 60 * self.number


class SaveAndStop(TrainerCallback):
    """Asks for checkpoints, and ends the run behind one when a signal has come."""

    def __init__(self, every: SaveInterval, log: Callable[[str], None]) -> None:
        self.every, self.log = every, log
        self.signal: int | None = None
        self._last_saved = time.monotonic()
        self._over = False

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        # The last step of an epoch is saved after its evaluation; a checkpoint before it would skip the evaluation.
        ends = state.global_step >= state.max_steps or float(state.epoch or 0).is_integer()
        due = self.signal is not None or self.every.is_due(state.global_step, self._last_saved)
        if due and not ends:
            control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._last_saved = time.monotonic()
        if self.signal is not None:
            raise Stopped(
                f"stopped after step {state.global_step} of {state.max_steps}; checkpoint-{state.global_step} is "
                "written, and train --resume goes on from it.",
                self.signal,
            )

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._over = True

    def on_features(self) -> None:
        """Between two batches of a frozen trunk there is nothing to save."""
        if self.signal is not None:
            raise Stopped("stopped while the frozen part ran; train --resume goes on.", self.signal)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM end the run behind its next checkpoint; a second Ctrl-C ends it at once."""
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread may listen
            return
        before = {number: signal.signal(number, self._hear) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number
        again = " Ctrl-C again leaves at once." if number == signal.SIGINT else ""
        what = "the training is over: its model is being written" if self._over else _STOPPING
        self.log(f"{what}.{again}")


# Stopwatch: how long the steps and epochs of a training really took.


class StepTimer(TrainerCallback):
    """The time of every step, without evaluation and saving, and of every epoch with all that belongs to it."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.epochs: list[float] = []
        self._start = 0.0
        self._epoch = time.perf_counter()
        self._over = False
        """Whether an epoch's last step was taken. One that goes back to a checkpoint is still the same epoch."""

    @property
    def median(self) -> float | None:
        """The usual step; the first one warms up and does not count where there are more."""
        steady = self.seconds[1:] or self.seconds
        return statistics.median(steady) if steady else None

    def begin(self) -> None:
        """The first epoch begins, with what has to be done before its first step."""
        self._epoch = time.perf_counter()

    def exclude(self, seconds: float) -> None:
        """So much of the first epoch was only tried out."""
        if self.epochs:
            self.epochs[0] -= seconds

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self._start = time.perf_counter()

    def on_epoch_begin(self, *args: Any, **kwargs: Any) -> None:
        if self._over:
            self._end_epoch()

    def on_epoch_end(self, *args: Any, **kwargs: Any) -> None:
        self._over = True

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        self._end_epoch()

    def _end_epoch(self) -> None:
        now = time.perf_counter()
        self.epochs.append(now - self._epoch)
        self._epoch, self._over = now, False

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.seconds.append(time.perf_counter() - self._start)
