"""Prediction and measurement of the recipes of a comparison, each called in a fresh process of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tightfit.comparison.comparison import Measurement, RowPrediction
from tightfit.device import NONE, find_device
from tightfit.job import Job
from tightfit.messages import Message
from tightfit.runs.record import Run
from tightfit.strategies.recipe import Recipe

if TYPE_CHECKING:
    from tightfit.planning.plan import Option
    from tightfit.planning.planner import Planner

Prediction = tuple[RowPrediction | None, Message | None]
"""Memory and time of a recipe, or the reason why it cannot be used; neither if it cannot be simulated."""


def predict_recipes(job: Job, recipes: list[list[str]], device: str | None) -> list[Prediction]:
    """Predict all recipes in one process, where they share traces."""
    from tightfit.planning.planner import Planner

    planner = Planner.of(job, find_device(device))
    return [_predict_one(planner, Recipe.parse(specs)) for specs in recipes]


def _predict_one(planner: Planner, recipe: Recipe) -> Prediction:
    try:
        option = planner.option(recipe)
    except Exception:  # the training itself may run although the simulation failed
        return None, None
    return (_row_prediction(option), None) if option is not None else (None, planner.rejection(recipe))


def _row_prediction(option: Option) -> RowPrediction:
    estimate = option.estimate
    kinds = {kind.value: size for kind, size in estimate.phases[estimate.phase].items()}
    return RowPrediction(
        peak_bytes=estimate.peak,
        phase=estimate.phase,
        kinds={"process": estimate.overhead, **kinds},
        seconds_per_step=option.seconds_per_step,
        steps_per_epoch=option.steps_per_epoch,
        fits=estimate.fits,
    )


def measure(
    train: Callable[..., Run], job: Job, specs: list[str], device: str | None, folder: Path, full: bool
) -> Measurement:
    """Train a recipe and return its measurements; `train` is `tightfit.train`."""
    from tightfit.timing.cpu_load import CpuShare

    load = CpuShare()
    run = train(job, specs, budget=NONE, out=folder, device=device, quiet=True, measure_only=not full)
    assert run.measured.seconds_per_step is not None  # it has trained
    cached = "features" in run.measured.phases
    return Measurement(
        seed=job.seed,
        peak_bytes=run.measured.peak_bytes,
        predicted_bytes=run.predicted.peak_bytes,
        phases=run.measured.phases,
        seconds_per_step=run.measured.seconds_per_step,
        steps=run.steps,
        steps_per_epoch=-(-run.data.train_rows // job.batch_size),
        first_epoch_seconds=run.measured.epochs[0] if cached and run.measured.epochs else None,
        metrics=run.metrics if full else {},
        labels=run.data.labels,
        positive_label=run.data.positive_label,
        notes=run.notes,
        cpu_of_others=round(load.others, 3),
    )
