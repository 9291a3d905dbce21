"""Finite values: a run whose loss or gradient becomes infinite or NaN stops with its last good checkpoint."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from tightfit.errors import LossNotFinite
from tightfit.runs.folder import latest_checkpoint

if TYPE_CHECKING:
    from transformers import TrainerState, TrainingArguments


def check_finite(what: str, value: float, args: TrainingArguments, state: TrainerState) -> None:
    """Raise LossNotFinite unless a loss or a norm is a number."""
    if math.isfinite(value):
        return
    saved = latest_checkpoint(Path(args.output_dir))
    kept = f"{saved} holds the last good weights" if saved else "no checkpoint had been written yet"
    raise LossNotFinite(
        f"The {what} became {value} after {state.global_step} steps, so the run stopped; {kept}. "
        f"Try --learning-rate {args.learning_rate / 4:g}, or leave out mixed-precision if it is in use."
    )
