"""Climbing: every rung foretold, then measured in a process of its own. What is measured is never measured again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from tightfit.comparison.comparison import FILE, Climb, Foretold, Ladder, Row, load_ladder
from tightfit.device import Device, find_device
from tightfit.errors import BadInput, OutputError, RunFailed
from tightfit.job import Job
from tightfit.processes import ask
from tightfit.runs.record import versions
from tightfit.strategies.recipe import Recipe
from tightfit.units import format_bytes, parse_bytes

_TRAINING = "training"
_WORKER = "tightfit.cli.worker"


class Progress(Protocol):
    """Hears which rung is on."""

    def begin(self, row: Row) -> None: ...

    def glance(self, seconds: float) -> None: ...

    def end(self, row: Row) -> None: ...


class Listener(Protocol):
    """Where a ladder reports what happens: the console, as a rule."""

    def status(self, what: str) -> AbstractContextManager[None]: ...

    def comparison(self, ladder: Ladder, recipes: list[Recipe], seeds: int) -> AbstractContextManager[Progress]: ...


def climb(
    job: Job,
    recipes: list[Recipe],
    *,
    steps: int | None,
    seeds: int,
    budget: str | None,
    device: str | None,
    out: Path,
    screen: Listener,
) -> Ladder:
    """Measure what is not measured yet; seeds take turns, so that all rungs meet the machine in the same moods."""
    _refuse_counts(steps, seeds)
    where = find_device(device)
    ladder = _ladder(out, job, recipes, where, steps, parse_bytes(budget) if budget else None)
    _foretell(ladder, recipes, device, screen)
    out.mkdir(parents=True, exist_ok=True)  # only now: what is wrong with the data is known
    ladder.save(out)
    with screen.comparison(ladder, recipes, seeds) as progress:
        for seed in range(job.seed, job.seed + seeds):
            for recipe in recipes:
                _climb(ladder, recipe, seed, device, out, progress)
    return ladder


def _refuse_counts(steps: int | None, seeds: int) -> None:
    for name, number in (("steps", steps), ("seeds", seeds)):
        if number is not None and number < 1:
            raise BadInput(f"--{name} is {number}: a ladder needs at least 1.")


def _ladder(
    out: Path, job: Job, recipes: list[Recipe], device: Device, steps: int | None, budget: int | None
) -> Ladder:
    """What the folder already holds of the same, and a row for each rung."""
    ladder = Ladder(job=job, device=device.title, steps=steps, rows=[], versions=versions())
    if (out / FILE).is_file():
        before = load_ladder(out / FILE)
        _refuse_other_ladder(out, before, ladder)
        ladder = before
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise OutputError(f"'{out}' is there and holds no ladder: give another --out.")
    known = {tuple(row.recipe) for row in ladder.rows}
    new = [Row(recipe=r.words, result=r.result.value) for r in recipes if tuple(r.words) not in known]
    return ladder.model_copy(update={"rows": [*ladder.rows, *new], "budget_bytes": budget or ladder.budget_bytes})


def _refuse_other_ladder(out: Path, before: Ladder, now: Ladder) -> None:
    for name in ("job", "device", "steps"):
        if getattr(before, name) != getattr(now, name):
            raise BadInput(f"'{out}' holds a ladder with another {name}: give another --out, or the same {name}.")


def _foretell(ladder: Ladder, recipes: list[Recipe], device: str | None, screen: Listener) -> None:
    """In one process for all: they share what is played."""
    rows = [row for recipe in recipes if (row := ladder.row(recipe)) and row.foretold is None]
    if not rows:
        return
    task = {"job": ladder.job.model_dump(), "recipes": [row.recipe for row in rows], "device": device}
    with screen.status(f"Rehearsing {len(rows)} rungs"):
        answer = ask(_WORKER, task)
    if answer.found is None:
        raise (BadInput if answer.exit_code == BadInput.exit_code else RunFailed)(answer.sentence)
    for row, said in zip(rows, answer.found, strict=True):
        row.foretold = Foretold(**said["foretold"]) if "foretold" in said else None
        row.failed = said.get("failed")


def _climb(ladder: Ladder, recipe: Recipe, seed: int, device: str | None, out: Path, progress: Progress) -> None:
    row = ladder.row(recipe)
    assert row is not None
    if any(climb.seed == seed for climb in row.climbs):
        return
    progress.begin(row)
    if _can_be_tried(row, ladder.device):
        _measure(ladder, row, seed, device, out, progress.glance)
        ladder.save(out)
    progress.end(row)


def _can_be_tried(row: Row, device: str) -> bool:
    """A rung that is not for this model, or too large for this machine, is a row without a measurement."""
    if row.foretold is None:
        return row.failed is None
    if row.foretold.fits is False:
        row.failed = f"not run: it would take {format_bytes(row.foretold.peak_bytes)}, more than {device} has"
    return row.foretold.fits is not False


def _measure(
    ladder: Ladder, row: Row, seed: int, device: str | None, out: Path, glance: Callable[[float], None]
) -> None:
    folder = out / _TRAINING
    shutil.rmtree(folder, ignore_errors=True)  # of one that was killed
    changes: dict[str, Any] = {"seed": seed} | ({"max_steps": ladder.steps} if ladder.steps else {})
    job = ladder.job.model_copy(update=changes)
    task = {"job": job.model_dump(), "words": row.recipe, "device": device, "folder": str(folder)}
    try:
        answer = ask(_WORKER, task | {"full": ladder.steps is None}, glance)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    row.failed = answer.sentence or None
    if answer.found is not None:
        row.climbs.append(Climb(**answer.found))
