"""Step timer: the seconds of each training step and epoch."""

from __future__ import annotations

import statistics
import time
from typing import Any

from transformers import TrainerCallback


class StepTimer(TrainerCallback):
    """Times every step without evaluation and saving, and every epoch with both."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.epochs: list[float] = []
        self._start = 0.0
        self._epoch = time.perf_counter()
        self._epoch_done = False
        """Whether the last step of the epoch was taken; an epoch resumed from a checkpoint is still the same one."""

    @property
    def median(self) -> float | None:
        """The median step, without the first one, which warms up, unless it is the only one."""
        steady = self.seconds[1:] or self.seconds
        return statistics.median(steady) if steady else None

    def start(self) -> None:
        """Start the first epoch, which includes computing cached features."""
        self._epoch = time.perf_counter()

    def exclude(self, seconds: float) -> None:
        """Do not count these seconds, which the pre-flight took, in the first epoch."""
        if self.epochs:
            self.epochs[0] -= seconds

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self._start = time.perf_counter()

    def on_epoch_begin(self, *args: Any, **kwargs: Any) -> None:
        if self._epoch_done:
            self._end_epoch()

    def on_epoch_end(self, *args: Any, **kwargs: Any) -> None:
        self._epoch_done = True

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        self._end_epoch()

    def _end_epoch(self) -> None:
        now = time.perf_counter()
        self.epochs.append(now - self._epoch)
        self._epoch, self._epoch_done = now, False

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.seconds.append(time.perf_counter() - self._start)
