"""Running a comparison: each recipe is predicted, then measured once in its own process."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from tightfit.comparison.comparison import (
    FILE,
    Comparison,
    ComparisonRow,
    load_comparison,
)
from tightfit.comparison.measure import measure, predict_recipes
from tightfit.device import Device, find_device
from tightfit.errors import BadInput, OutputError, TightfitError, first_line
from tightfit.job import Job
from tightfit.messages import Message, msg, verbatim
from tightfit.messages import name as name_of
from tightfit.optional_imports import slim_process
from tightfit.runs.lock import FILE as LOCK_FILE
from tightfit.runs.lock import locked_folder
from tightfit.runs.record import Run, versions
from tightfit.strategies.recipe import Recipe
from tightfit.system.processes import Worker
from tightfit.units import format_bytes, parse_bytes

_TRAINING = "training"


class Progress(Protocol):
    """Progress of the measurements."""

    def begin(self, row: ComparisonRow) -> None: ...

    def on_tick(self, seconds: float) -> None: ...

    def end(self, row: ComparisonRow) -> None: ...


class Listener(Protocol):
    """Receives the status and progress of a comparison; usually the terminal."""

    def status(self, what: Message) -> AbstractContextManager[None]: ...

    def comparison(
        self, comparison: Comparison, recipes: list[Recipe], seeds: int
    ) -> AbstractContextManager[Progress]: ...


Train = Callable[..., Run]


def run_comparison(
    job: Job,
    recipes: list[Recipe],
    *,
    train: Train,
    steps: int | None,
    seeds: int,
    budget: str | None,
    device: str | None,
    out: Path,
    terminal: Listener,
) -> Comparison:
    """Measure what is missing, all recipes once per seed in turn, so that noise of the machine affects them alike.

    `train` is `tightfit.train`, called in fresh processes.
    """
    _check_counts(steps, seeds)
    where = find_device(device)
    with locked_folder(out):
        comparison = _comparison(out, job, recipes, where, steps, parse_bytes(budget) if budget else None)
        _predict(comparison, recipes, device, terminal)
        comparison.save(out)  # only now: bad data has been rejected
        with terminal.comparison(comparison, recipes, seeds) as progress:
            for seed in range(job.seed, job.seed + seeds):
                for recipe in recipes:
                    _measure_row(train, comparison, recipe, seed, device, out, progress)
    return comparison


def _check_counts(steps: int | None, seeds: int) -> None:
    for name, number in (("steps", steps), ("seeds", seeds)):
        if number is not None and number < 1:
            raise BadInput(msg("--{name} is {number}: a comparison needs at least 1.", name=name, number=number))


def _comparison(
    out: Path, job: Job, recipes: list[Recipe], device: Device, steps: int | None, budget: int | None
) -> Comparison:
    """The comparison saved in the folder, or a new one, with a row for each recipe."""
    comparison = Comparison(job=job, device=device.label, steps=steps, rows=[], versions=versions())
    if (out / FILE).is_file():
        before = load_comparison(out / FILE)
        _check_same_comparison(out, before, comparison)
        comparison = before
    elif any(path.name != LOCK_FILE for path in out.iterdir()):
        raise OutputError(msg("'{folder}' exists and holds no comparison: give another --out.", folder=out))
    known = {tuple(row.recipe) for row in comparison.rows}
    new = [ComparisonRow(recipe=r.specs, result=r.result.value) for r in recipes if tuple(r.specs) not in known]
    return comparison.model_copy(
        update={"rows": [*comparison.rows, *new], "budget_bytes": budget or comparison.budget_bytes}
    )


def _check_same_comparison(out: Path, before: Comparison, now: Comparison) -> None:
    for name in ("job", "device", "steps"):
        if getattr(before, name) != getattr(now, name):
            raise BadInput(
                msg(
                    "'{folder}' holds a comparison with another {name}: give another --out, or the same {name}.",
                    folder=out,
                    name=name,
                )
            )


def _predict(comparison: Comparison, recipes: list[Recipe], device: str | None, terminal: Listener) -> None:
    """Predict all recipes in one process, where they share traces."""
    rows = [row for recipe in recipes if (row := comparison.row(recipe)) and row.predicted is None]
    if not rows:
        return
    with terminal.status(msg("simulating {count} recipes", count=len(rows))), Worker(slim_process) as worker:
        found = worker.call(predict_recipes, comparison.job, [row.recipe for row in rows], device)
    for row, (predicted, reason) in zip(rows, found, strict=True):
        row.predicted, row.failed = predicted, reason


def _measure_row(
    train: Train,
    comparison: Comparison,
    recipe: Recipe,
    seed: int,
    device: str | None,
    out: Path,
    progress: Progress,
) -> None:
    row = comparison.row(recipe)
    assert row is not None
    if any(measurement.seed == seed for measurement in row.measurements):
        return
    progress.begin(row)
    if _is_runnable(row, comparison.device):
        _measure(train, comparison, row, seed, device, out, progress.on_tick)
        comparison.save(out)
    progress.end(row)


def _is_runnable(row: ComparisonRow, device: str) -> bool:
    """Whether the recipe can be measured; one that does not suit the model or the machine keeps its row."""
    if row.predicted is None:
        return row.failed is None
    if row.predicted.fits is False:
        needed = format_bytes(row.predicted.peak_bytes)
        row.failed = msg("not run: it needs {needed}, more than {device} has", needed=needed, device=name_of(device))
    return row.predicted.fits is not False


def _measure(
    train: Train,
    comparison: Comparison,
    row: ComparisonRow,
    seed: int,
    device: str | None,
    out: Path,
    on_tick: Callable[[float], None],
) -> None:
    folder = out / _TRAINING
    shutil.rmtree(folder, ignore_errors=True)  # left by a killed training
    changes: dict[str, Any] = {"seed": seed} | ({"max_steps": comparison.steps} if comparison.steps else {})
    job = comparison.job.model_copy(update=changes)
    task = train, job, row.recipe, device, folder, comparison.steps is None
    try:
        with Worker(slim_process) as worker:
            row.measurements.append(worker.call(measure, *task, on_tick=on_tick))
        row.failed = None
    except Exception as error:  # the comparison continues, also if the process was killed
        row.failed = _failure(error)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _failure(error: Exception) -> Message:
    if isinstance(error, TightfitError):
        return error.message
    return verbatim(f"{type(error).__name__}: {first_line(error)}")
