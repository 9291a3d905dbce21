"""Finite values: a run whose loss or gradient becomes infinite or NaN stops with its last good checkpoint.

In fp16 gradients may overflow: the gradient scaler skips such a step and halves its scale, and the run counts it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from tightfit.errors import LossNotFinite
from tightfit.messages import Message, msg
from tightfit.runs.folder import latest_checkpoint
from tightfit.units import format_steps

if TYPE_CHECKING:
    from transformers import TrainerState, TrainingArguments


def check_finite(what: Message, value: float, args: TrainingArguments, state: TrainerState) -> None:
    """Raise LossNotFinite unless a loss or a norm is a number."""
    if math.isfinite(value):
        return
    saved = latest_checkpoint(Path(args.output_dir))
    kept = msg("no checkpoint had been written yet")
    if saved:
        kept = msg("{checkpoint} holds the last good weights", checkpoint=saved)
    raise LossNotFinite(
        msg(
            "The {what} became {value} after {steps}, so the run stopped; {kept}. "
            "Try --learning-rate {rate:g}, or leave out mixed-precision if it is in use.",
            what=what,
            value=str(value),
            steps=format_steps(state.global_step),
            kept=kept,
            rate=args.learning_rate / 4,
        )
    )


class SkippedSteps(TrainerCallback):
    """Counts the steps that a gradient scaler skipped.

    The scale tells: it falls after such a step only. accelerate asks whether the optimizer's step was called, but a
    fused optimizer is always called, and skips the step itself.
    """

    def __init__(self, scaler: Callable[[], Any]) -> None:
        self.count, self._scaler, self._scale = 0, scaler, 0.0

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        if (scaler := self._scaler()) is not None:
            self._scale = scaler.get_scale()

    def on_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        if (scaler := self._scaler()) is not None:
            self.count += scaler.get_scale() < self._scale

    def note(self, steps: int) -> Message:
        """What a user should know of them."""
        return msg(
            "{skipped} of {steps} skipped: their gradients overflowed in fp16, so they changed no weights",
            skipped=self.count,
            steps=format_steps(steps),
        )
