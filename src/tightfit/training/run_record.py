"""Fills in the run header before the first step, and the run record (run.json) after the last."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightfit.activity import Activities
from tightfit.engine.meter import Meter
from tightfit.messages import Message
from tightfit.runs.header import Attempt, RunHeader, Segment, StepTimeline, TensorGroup, load_header
from tightfit.runs.quality_notes import with_notes
from tightfit.runs.record import Measured, Predicted, Run, versions
from tightfit.simulation.profile import StepProfile
from tightfit.tasks.quality import Quality
from tightfit.training.setup import TrainingSetup

if TYPE_CHECKING:
    from transformers import TrainerState

    from tightfit.training.step_timer import StepTimer


_PREDICTED = ("estimate", "step", "largest_tensors", "smaller_recipes")


def write_header(folder: Path, setup: TrainingSetup, from_step: int, budget: int | None) -> None:
    """Write the header at the start of an attempt; a resumed run keeps the plan and the prediction of its first."""
    before = load_header(folder)
    now = make_header(setup, budget)
    attempt = Attempt(started_at=_now(), from_step=from_step, recipe=setup.recipe.specs)
    attempts = [*(before.attempts if before else []), attempt]
    kept: dict[str, Any] = {"attempts": attempts}
    if before and before.recipe == now.recipe and now.plan is None:
        kept |= {name: getattr(before, name) for name in ("plan", "seconds_per_step", "budget_bytes")}
        kept |= {name: getattr(before, name) for name in _PREDICTED} if before.estimate else {}
    now.model_copy(update=kept).save(folder)


def make_header(setup: TrainingSetup, budget: int | None) -> RunHeader:
    """The header from the data, the model and the simulation."""
    parts, profile, selection = setup.parts, setup.profile, setup.selection
    batching = parts.step_batching
    return RunHeader(
        recipe=setup.recipe.specs,
        result=setup.recipe.result.value,
        device=parts.device.label,
        max_length=parts.batching.max_length,
        steps=setup.steps,
        data=setup.data,
        parameters=parts.parameters,
        trainable_parameters=parts.trainable_parameters,
        budget_bytes=budget,
        notes=list(setup.notes),
        versions=versions(),
        estimate=setup.estimate.to_json() if setup.estimate else None,
        seconds_per_step=selection.seconds_per_step if selection else None,
        step=_step_timeline(profile, -(-batching.batch_size // batching.micro_batch_rows)) if profile else None,
        largest_tensors=_largest_tensors(profile) if profile else [],
        lengths=setup.lengths,
        plan=selection.plan if selection else None,
        smaller_recipes=setup.smaller_recipes,
    )


def _step_timeline(profile: StepProfile, micro_batches: int) -> StepTimeline:
    kinds = {kind.value: sizes for kind, sizes in profile.kinds.items()}
    segments = [Segment(**vars(segment)) for segment in profile.segments]
    return StepTimeline(kinds=kinds, segments=segments, micro_batches=micro_batches)


def _largest_tensors(profile: StepProfile) -> list[TensorGroup]:
    return [
        TensorGroup(
            kind=each.kind.value,
            owner=each.owner,
            shape=list(each.shape) if each.shape is not None else None,
            bytes=each.size,
            count=each.count,
        )
        for each in profile.largest
    ]


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def measured_values(meter: Meter, seconds: float, timer: StepTimer, activities: Activities) -> Measured:
    """Measured memory and time."""
    return Measured(
        peak_bytes=meter.peak,
        phases=dict(meter.phases),
        seconds=round(seconds, 3),
        seconds_per_step=timer.median,
        epochs=[round(seconds, 3) for seconds in timer.epochs],
        allocated_phases=dict(meter.allocated) or None,
        context_bytes=meter.context,
        total_seconds=round(activities.total(), 3),
        activities={str(what): round(seconds, 3) for what, seconds in activities.seconds.items()},
    )


def make_run(
    folder: Path,
    setup: TrainingSetup,
    state: TrainerState,
    measured: Measured,
    quality: Quality | None,
    *,
    parameters: int,
    trainable: int,
    events: list[Message],
    attempts: int,
    skipped: int | None,
) -> Run:
    """The record of a finished run."""
    parts, metrics, header = setup.parts, _best_metrics(state.log_history, state.best_global_step), load_header(folder)
    noted = with_notes(quality, metrics, setup.scoring, setup.job, all_trained=trainable == parameters)
    return Run(
        folder=str(folder),
        job=setup.job,
        recipe=setup.recipe.specs,
        result=setup.recipe.result.value,
        max_length=parts.batching.max_length,
        device=parts.device.label,
        data=setup.data,
        parameters=parameters,
        trainable_parameters=trainable,
        steps=state.global_step,
        skipped_steps=skipped,
        measured=measured,
        predicted=_predicted(header) if header else Predicted(),
        metrics=metrics,
        quality=noted,
        history=state.log_history,
        notes=[*setup.notes, *events],
        versions=versions(),
        attempts=attempts,
    )


def _predicted(header: RunHeader) -> Predicted:
    """What the header predicts: a run that was resumed has one prediction, that of its first attempt."""
    estimate, seconds = header.estimate, header.seconds_per_step
    if estimate is None:
        return Predicted(seconds_per_step=seconds)
    context = estimate["overhead_bytes"] if estimate["libraries"] else 0
    process = estimate["overhead_bytes"] - context
    return Predicted(
        peak_bytes=estimate["peak_bytes"] - context,
        phases={name: process + sum(kinds.values()) for name, kinds in estimate["phases"].items()},
        context_bytes=context or None,
        seconds_per_step=seconds,
    )


def _best_metrics(history: list[dict[str, float]], best_step: int | None) -> dict[str, float]:
    """The metrics of the epoch whose weights were saved, and the mean training loss."""
    evaluations = [entry for entry in history if "eval_loss" in entry]
    best = next((entry for entry in evaluations if entry["step"] == best_step), {"epoch": 0.0})
    scores = {key: value for key, value in best.items() if key.startswith("eval_") or key == "epoch"}
    return {**scores, **{key: entry[key] for entry in history for key in ("train_loss",) if key in entry}}
