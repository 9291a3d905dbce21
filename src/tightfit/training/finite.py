"""Finite values: a run whose loss or gradient becomes infinite or NaN stops with its last good checkpoint."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

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
