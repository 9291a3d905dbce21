"""Resuming: going on with a run only where that is the same run."""

from __future__ import annotations

import shutil
from pathlib import Path

from tightfit.beginning import FILE as BEGINNING
from tightfit.checkpoints import step_of
from tightfit.data.split import FOLDER, Split, load_split
from tightfit.errors import BadInput, OutputError
from tightfit.job import Job, read_job_file
from tightfit.recipe import Recipe
from tightfit.record import FILE, Run, load_run
from tightfit.strategy import Result
from tightfit.whole import is_leftover

JOB_FILE = "job.yaml"
_MAY_CHANGE = ("epochs", "max_steps")


def refuse_folder(folder: Path, resume: bool) -> None:
    """A new run wants an empty folder, a resumed one a folder that a run wrote."""
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"'{folder}' is a file: give --out the name of a folder.")
    if resume and not (folder / JOB_FILE).is_file():
        raise OutputError(f"There is no run in '{folder}' to go on with: leave out --resume, or name its folder.")
    if not resume and folder.is_dir() and not all(_is_of_no_run(path) for path in folder.iterdir()):
        raise OutputError(f"The folder '{folder}' is not empty: add --resume to go on with it, or give another --out.")


def _is_of_no_run(path: Path) -> bool:
    """What a process leaves that is killed before its run has begun."""
    first = (path.name == FOLDER and path.is_dir()) or path.name == BEGINNING
    return is_leftover(path) or (first and not (path.parent / JOB_FILE).exists())


def remove_beginning(folder: Path) -> None:
    """A run that did not come to its first step leaves the folder free for another try."""
    for name in (JOB_FILE, BEGINNING):
        (folder / name).unlink(missing_ok=True)
    for name in ("checkpoint-0", FOLDER):
        shutil.rmtree(folder / name, ignore_errors=True)
    if not any(folder.iterdir()):
        folder.rmdir()


def recipe_to_go_on_with(folder: Path, given: Recipe, *, planned: bool) -> Recipe:
    """Of a run under a budget: its own, whatever was planned before; what was only to be in it has to be in it."""
    own = Recipe.parse(read_job_file(folder / JOB_FILE)[1])
    return own if planned or set(given.words) <= set(own.words) else given


def finished_run(folder: Path, job: Job, recipe: Recipe) -> Run | None:
    """Refuse another job or recipe than the folder's; give back its record if there is nothing left to do."""
    values, words = read_job_file(folder / JOB_FILE)
    before = Job(**values)
    for name in Job.model_fields:
        if name not in _MAY_CHANGE and getattr(job, name) != getattr(before, name):
            raise BadInput(
                f"--resume goes on with the same job, but {name.replace('_', '-')} is {getattr(job, name)!r} and was "
                f"{getattr(before, name)!r}: leave it out, or start another run with another --out."
            )
    _refuse_other_recipe(recipe, Recipe.parse(words))
    if not (folder / FILE).is_file():
        return None
    run = load_run(folder)  # perhaps of fewer epochs: a run that goes on for more keeps its record until it has another
    return run if all(getattr(job, name) == getattr(run.job, name) for name in _MAY_CHANGE) else None


def refuse_other_rows(folder: Path, split: Split) -> None:
    """Rows that were trained on must not become rows to validate on."""
    if not load_split(folder).is_of(split):
        raise BadInput(f"The data has changed since the run in '{folder}' began: start another run with another --out.")


def refuse_fewer_steps(checkpoint: Path, steps: int) -> None:
    """What is trained cannot be taken back."""
    done = step_of(checkpoint)
    if done > steps:
        raise BadInput(
            f"{checkpoint} is of step {done:,} and this training has {steps:,}: give more --epochs or --max-steps, or "
            "start another run with another --out."
        )


def _refuse_other_recipe(now: Recipe, before: Recipe) -> None:
    """How a step is carried out may change; what is trained and by which optimizer may not."""
    if _bound(now) != _bound(before):
        raise BadInput(
            f"--resume cannot change what is trained: the recipe was '{' '.join(before.words) or 'plain'}' and is "
            f"'{' '.join(now.words) or 'plain'}'. Only strategies that keep the result may come or go, no optimizers."
        )


def _bound(recipe: Recipe) -> list[str]:
    return [s.word for s in recipe.strategies if s.result is not Result.SAME or s.chooses == "optimizer"]
