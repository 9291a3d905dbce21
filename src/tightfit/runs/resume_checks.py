"""Resume: a run is continued only with the same job, data and recipe."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tightfit.data.split import Split, load_split
from tightfit.errors import BadInput
from tightfit.job import Job, read_job_file
from tightfit.messages import Message, msg
from tightfit.runs.folder import JOB_FILE, step_of, trainer_state
from tightfit.runs.record import FILE, Run, load_run
from tightfit.strategies.base import Result
from tightfit.strategies.recipe import Recipe
from tightfit.units import format_steps

CHANGEABLE = ("epochs", "max_steps")  # by a resumed run


def recipe_for_resume(folder: Path, given: Recipe, *, planned: bool) -> Recipe:
    """Under a budget a run keeps its own recipe, if that was planned or contains all the given strategies."""
    own = Recipe.parse(read_job_file(folder / JOB_FILE)[1])
    return own if planned or set(given.specs) <= set(own.specs) else given


def finished_run(folder: Path, job: Job, recipe: Recipe) -> Run | None:
    """Reject a job or recipe other than the folder's; return the record if there is nothing left to do."""
    values, specs = read_job_file(folder / JOB_FILE)
    before = Job(**values)
    for name in Job.model_fields:
        if name not in CHANGEABLE and getattr(job, name) != getattr(before, name):
            raise BadInput(
                msg(
                    "--resume continues the same job, but {name} is {now} and was {before}: "
                    "leave it out, or start another run with another --out.",
                    name=name.replace("_", "-"),
                    now=repr(getattr(job, name)),
                    before=repr(getattr(before, name)),
                )
            )
    _check_same_recipe(recipe, Recipe.parse(specs))
    if not (folder / FILE).is_file():
        return None
    run = load_run(folder)  # may be of fewer epochs: a run that continues keeps its old record until it has finished
    return run if all(getattr(job, name) == getattr(run.job, name) for name in CHANGEABLE) else None


def check_not_finished(folder: Path) -> None:
    """A finished run without checkpoints cannot be continued."""
    if (folder / FILE).is_file():
        raise BadInput(
            msg(
                "The run in '{folder}' has finished and kept no checkpoint to continue from: "
                "start another run with --model {folder}.",
                folder=folder,
            )
        )


def check_same_rows(folder: Path, split: Split) -> None:
    """Training rows must not become validation rows."""
    if not load_split(folder).matches(split):
        raise BadInput(
            msg(
                "The data has changed since the run in '{folder}' started: start another run with another --out.",
                folder=folder,
            )
        )


def check_steps_left(checkpoint: Path, steps: int) -> None:
    """Steps that were trained cannot be undone."""
    done = step_of(checkpoint)
    if done > steps:
        raise BadInput(
            msg(
                "{checkpoint} is at step {done:,} and this run has only {steps}: give more --epochs or "
                "--max-steps, or start another run with another --out.",
                checkpoint=checkpoint,
                done=done,
                steps=format_steps(steps),
            )
        )


def resume_notes(checkpoint: Path | None, steps: int, job: Job) -> Iterator[Message]:
    """From which step a run continues, and what another number of steps does to its learning rate."""
    if checkpoint is None:
        yield msg("there is no checkpoint yet, so training starts at the beginning")
        return
    done, before = step_of(checkpoint), trainer_state(checkpoint).get("max_steps")
    yield msg(
        "continuing from {checkpoint}: {done:,} of {steps:,} steps are done",
        checkpoint=checkpoint.name,
        done=done,
        steps=steps,
    )
    if not isinstance(before, int) or before in (0, steps):
        return
    if job.lr_scheduler_type != "linear" or job.warmup_ratio or job.warmup_steps:
        yield msg(
            "the learning rate is that of a run of {steps:,} steps from now on; it was that of {before:,} before",
            steps=steps,
            before=before,
        )
    else:
        yield msg(
            "the learning rate falls linearly to 0 at the last step, which is now {steps:,} and was {before:,}: "
            "it continues at {now:.2g}, and was {then:.2g} at step {done:,}",
            steps=steps,
            before=before,
            now=job.learning_rate * (1 - done / steps),
            then=job.learning_rate * (1 - done / before),
            done=done,
        )


def _check_same_recipe(now: Recipe, before: Recipe) -> None:
    """How a step is computed may change; what is trained and by which optimizer may not."""
    if _result_changing(now) != _result_changing(before):
        raise BadInput(
            msg(
                "--resume cannot change what is trained: the recipe was '{before}' and is '{now}'. "
                "Strategies that keep the result may be added or removed, except optimizers.",
                before=before.title,
                now=now.title,
            )
        )


def _result_changing(recipe: Recipe) -> list[str]:
    return [s.spec for s in recipe.strategies if s.result is not Result.SAME or s.exclusive == "optimizer"]
