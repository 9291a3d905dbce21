"""Recording: what was prepared, what happened and what was measured, as the run's record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tightfit.meter import Meter
from tightfit.preparation import Prepared
from tightfit.record import Measured, Predicted, Run, versions

if TYPE_CHECKING:
    from transformers import TrainerState

    from tightfit.rehearsal.bill import Bill
    from tightfit.stopwatch import StepClock


def measured_by(meter: Meter, seconds: float, clock: StepClock) -> Measured:
    """What the meter and the stopwatch saw."""
    return Measured(
        peak_bytes=meter.peak,
        moments=dict(meter.moments),
        seconds=round(seconds, 3),
        seconds_per_step=clock.median,
        epochs=[round(seconds, 3) for seconds in clock.epochs],
        allocated_moments=dict(meter.allocated) or None,
    )


def record_of(
    folder: Path,
    prepared: Prepared,
    state: TrainerState,
    measured: Measured,
    *,
    parameters: int,
    trainable: int,
    learned: list[str],
    attempts: int,
) -> Run:
    """Everything that is to be known of a run that is done."""
    parts = prepared.parts
    return Run(
        folder=str(folder),
        job=prepared.job,
        recipe=prepared.recipe.words,
        result=prepared.recipe.result.value,
        max_length=parts.max_length,
        device=parts.device.title,
        data=prepared.data,
        parameters=parameters,
        trainable_parameters=trainable,
        steps=state.global_step,
        measured=measured,
        predicted=_predicted(prepared.bill, prepared.kept.seconds_per_step if prepared.kept else None),
        metrics=_best_metrics(state.log_history, state.best_global_step),
        history=state.log_history,
        notes=[*prepared.notes, *learned],
        versions=versions(),
        attempts=attempts,
    )


def _predicted(bill: Bill | None, seconds_per_step: float | None) -> Predicted:
    if bill is None:
        return Predicted(seconds_per_step=seconds_per_step)
    totals = {name: bill.overhead + sum(kinds.values()) for name, kinds in bill.moments.items()}
    return Predicted(peak_bytes=bill.peak, moments=totals, seconds_per_step=seconds_per_step)


def _best_metrics(history: list[dict[str, float]], kept: int | None) -> dict[str, float]:
    """The metrics of the epoch whose weights were kept, and the mean training loss."""
    evaluations = [entry for entry in history if "eval_loss" in entry]
    best = next((entry for entry in evaluations if entry["step"] == kept), {"epoch": 0.0})
    scores = {key: value for key, value in best.items() if key.startswith("eval_") or key == "epoch"}
    return {**scores, **{key: entry[key] for entry in history for key in ("train_loss",) if key in entry}}
