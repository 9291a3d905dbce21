"""What a run writes about itself: the header before its first step, and run.json after its last."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightfit.engine.meter import Meter
from tightfit.runs.header import Attempt, Beginning, Step, Stretch, Tensors, load_beginning
from tightfit.runs.record import Measured, Predicted, Run, versions
from tightfit.simulation.estimate import Bill
from tightfit.simulation.profile import Course
from tightfit.training.setup import Prepared

if TYPE_CHECKING:
    from transformers import TrainerState

    from tightfit.training.callbacks import StepClock


def write_beginning(folder: Path, prepared: Prepared, from_step: int, budget: int | None) -> None:
    """Before the first step, or when a run goes on: what was planned the first time stays."""
    before = load_beginning(folder)
    now = beginning_of(prepared, budget)
    attempt = Attempt(began=_now(), from_step=from_step, recipe=prepared.recipe.words)
    attempts = [*(before.attempts if before else []), attempt]
    kept: dict[str, Any] = {"attempts": attempts}
    if before and before.recipe == now.recipe and now.plan is None:
        kept |= {name: getattr(before, name) for name in ("plan", "seconds_per_step", "budget_bytes")}
    now.model_copy(update=kept).save(folder)


def beginning_of(prepared: Prepared, budget: int | None) -> Beginning:
    """From what was read, built and rehearsed."""
    parts, course, kept = prepared.parts, prepared.course, prepared.kept
    return Beginning(
        recipe=prepared.recipe.words,
        result=prepared.recipe.result.value,
        device=parts.device.title,
        max_length=parts.max_length,
        steps=prepared.steps,
        data=prepared.data,
        parameters=parts.parameters,
        trainable_parameters=parts.trainable_parameters,
        budget_bytes=budget,
        notes=list(prepared.notes),
        versions=versions(),
        bill=prepared.bill.to_json() if prepared.bill else None,
        seconds_per_step=kept.seconds_per_step if kept else None,
        step=_step(course, -(-parts.batch_size // parts.step_rows)) if course else None,
        largest=_largest(course) if course else [],
        texts=prepared.texts,
        plan=kept.plan if kept else None,
        smaller=prepared.smaller,
    )


def _step(course: Course, slices: int) -> Step:
    kinds = {kind.value: sizes for kind, sizes in course.kinds.items()}
    return Step(kinds=kinds, stretches=[Stretch(**vars(each)) for each in course.stretches], slices=slices)


def _largest(course: Course) -> list[Tensors]:
    return [
        Tensors(
            kind=each.kind.value,
            owner=each.owner,
            shape=list(each.shape) if each.shape is not None else None,
            bytes=each.size,
            count=each.count,
        )
        for each in course.largest
    ]


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


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
