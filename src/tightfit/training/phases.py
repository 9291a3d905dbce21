"""Trainer callback: the start of training, and the phase of an optimizer step, for the memory meter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback

from tightfit.engine.meter import OTHER, Meter


class PhaseCallback(TrainerCallback):
    """Calls `on_ready` before the first step, and starts and ends the phase of every optimizer step."""

    def __init__(self, meter: Meter, on_ready: Callable[[], None]) -> None:
        self.meter, self.on_ready = meter, on_ready

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.meter.begin(OTHER)
        self.on_ready()

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self.meter.begin("step")

    def on_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self.meter.begin(OTHER)
