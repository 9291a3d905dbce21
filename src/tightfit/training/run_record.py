"""What a run writes about itself: the header before its first step, and run.json after its last."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightfit.engine.meter import Meter
from tightfit.runs.header import Attempt, RunHeader, Segment, Step, Tensors, load_header
from tightfit.runs.record import Measured, Predicted, Run, versions
from tightfit.simulation.estimate import Estimate
from tightfit.simulation.profile import StepProfile
from tightfit.training.setup import TrainingSetup

if TYPE_CHECKING:
    from transformers import TrainerState

    from tightfit.training.callbacks import StepTimer


def write_header(folder: Path, setup: TrainingSetup, from_step: int, budget: int | None) -> None:
    """Before the first step, or when a run goes on: what was planned the first time stays."""
    before = load_header(folder)
    now = make_header(setup, budget)
    attempt = Attempt(began=_now(), from_step=from_step, recipe=setup.recipe.specs)
    attempts = [*(before.attempts if before else []), attempt]
    selection: dict[str, Any] = {"attempts": attempts}
    if before and before.recipe == now.recipe and now.plan is None:
        selection |= {name: getattr(before, name) for name in ("plan", "seconds_per_step", "budget_bytes")}
    now.model_copy(update=selection).save(folder)


def make_header(setup: TrainingSetup, budget: int | None) -> RunHeader:
    """From what was read, built and rehearsed."""
    parts, course, selection = setup.parts, setup.course, setup.selection
    return RunHeader(
        recipe=setup.recipe.specs,
        result=setup.recipe.result.value,
        device=parts.device.title,
        max_length=parts.max_length,
        steps=setup.steps,
        data=setup.data,
        parameters=parts.parameters,
        trainable_parameters=parts.trainable_parameters,
        budget_bytes=budget,
        notes=list(setup.notes),
        versions=versions(),
        estimate=setup.estimate.to_json() if setup.estimate else None,
        seconds_per_step=selection.seconds_per_step if selection else None,
        step=_step(course, -(-parts.batch_size // parts.micro_batch_rows)) if course else None,
        largest=_largest(course) if course else [],
        texts=setup.texts,
        plan=selection.plan if selection else None,
        smaller=setup.smaller,
    )


def _step(course: StepProfile, slices: int) -> Step:
    kinds = {kind.value: sizes for kind, sizes in course.kinds.items()}
    return Step(kinds=kinds, stretches=[Segment(**vars(each)) for each in course.stretches], slices=slices)


def _largest(course: StepProfile) -> list[Tensors]:
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


def measured_values(meter: Meter, seconds: float, clock: StepTimer) -> Measured:
    """What the meter and the stopwatch saw."""
    return Measured(
        peak_bytes=meter.peak,
        phases=dict(meter.phases),
        seconds=round(seconds, 3),
        seconds_per_step=clock.median,
        epochs=[round(seconds, 3) for seconds in clock.epochs],
        allocated_phases=dict(meter.allocated) or None,
    )


def make_run(
    folder: Path,
    setup: TrainingSetup,
    state: TrainerState,
    measured: Measured,
    *,
    parameters: int,
    trainable: int,
    learned: list[str],
    attempts: int,
) -> Run:
    """Everything that is to be known of a run that is done."""
    parts = setup.parts
    return Run(
        folder=str(folder),
        job=setup.job,
        recipe=setup.recipe.specs,
        result=setup.recipe.result.value,
        max_length=parts.max_length,
        device=parts.device.title,
        data=setup.data,
        parameters=parameters,
        trainable_parameters=trainable,
        steps=state.global_step,
        measured=measured,
        predicted=_predicted(setup.estimate, setup.selection.seconds_per_step if setup.selection else None),
        metrics=_best_metrics(state.log_history, state.best_global_step),
        history=state.log_history,
        notes=[*setup.notes, *learned],
        versions=versions(),
        attempts=attempts,
    )


def _predicted(estimate: Estimate | None, seconds_per_step: float | None) -> Predicted:
    if estimate is None:
        return Predicted(seconds_per_step=seconds_per_step)
    totals = {name: estimate.overhead + sum(kinds.values()) for name, kinds in estimate.phases.items()}
    return Predicted(peak_bytes=estimate.peak, phases=totals, seconds_per_step=seconds_per_step)


def _best_metrics(history: list[dict[str, float]], selection: int | None) -> dict[str, float]:
    """The metrics of the epoch whose weights were kept, and the mean training loss."""
    evaluations = [entry for entry in history if "eval_loss" in entry]
    best = next((entry for entry in evaluations if entry["step"] == selection), {"epoch": 0.0})
    scores = {key: value for key, value in best.items() if key.startswith("eval_") or key == "epoch"}
    return {**scores, **{key: entry[key] for entry in history for key in ("train_loss",) if key in entry}}
