"""Stopwatch: how long the steps and epochs of a training really took."""

from __future__ import annotations

import statistics
import time
from typing import Any

from transformers import TrainerCallback


class StepClock(TrainerCallback):
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

    def leave_out(self, seconds: float) -> None:
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
