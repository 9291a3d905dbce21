"""Resuming: going on with a run only where that is the same run."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tightfit.data.split import FOLDER, Split, load_split
from tightfit.errors import BadInput, OutputError
from tightfit.files import is_stale
from tightfit.job import Job, read_job_file
from tightfit.runs.header import FILE as BEGINNING
from tightfit.runs.header import RunHeader, load_header
from tightfit.runs.record import FILE, Data, Run, load_run
from tightfit.strategies.base import Result
from tightfit.strategies.recipe import Recipe

JOB_FILE = "job.yaml"
MANIFEST = "manifest.json"  # in a checkpoint: the list of files, and what transformers has no place for
_MAY_CHANGE = ("epochs", "max_steps")


def check_run_folder(folder: Path, resume: bool) -> None:
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
    return is_stale(path) or (first and not (path.parent / JOB_FILE).exists())


def discard_start(folder: Path) -> None:
    """A run that did not come to its first step leaves the folder free for another try."""
    for name in (JOB_FILE, BEGINNING):
        (folder / name).unlink(missing_ok=True)
    for name in ("checkpoint-0", FOLDER):
        shutil.rmtree(folder / name, ignore_errors=True)
    if not any(folder.iterdir()):
        folder.rmdir()


def recipe_for_resume(folder: Path, given: Recipe, *, planned: bool) -> Recipe:
    """Of a run under a budget: its own, whatever was planned before; what was only to be in it has to be in it."""
    own = Recipe.parse(read_job_file(folder / JOB_FILE)[1])
    return own if planned or set(given.specs) <= set(own.specs) else given


def finished_run(folder: Path, job: Job, recipe: Recipe) -> Run | None:
    """Refuse another job or recipe than the folder's; give back its record if there is nothing left to do."""
    values, specs = read_job_file(folder / JOB_FILE)
    before = Job(**values)
    for name in Job.model_fields:
        if name not in _MAY_CHANGE and getattr(job, name) != getattr(before, name):
            raise BadInput(
                f"--resume goes on with the same job, but {name.replace('_', '-')} is {getattr(job, name)!r} and was "
                f"{getattr(before, name)!r}: leave it out, or start another run with another --out."
            )
    _refuse_other_recipe(recipe, Recipe.parse(specs))
    if not (folder / FILE).is_file():
        return None
    run = load_run(folder)  # perhaps of fewer epochs: a run that goes on for more keeps its record until it has another
    return run if all(getattr(job, name) == getattr(run.job, name) for name in _MAY_CHANGE) else None


def check_same_rows(folder: Path, split: Split) -> None:
    """Rows that were trained on must not become rows to validate on."""
    if not load_split(folder).is_of(split):
        raise BadInput(f"The data has changed since the run in '{folder}' began: start another run with another --out.")


def check_steps_left(checkpoint: Path, steps: int) -> None:
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
            f"--resume cannot change what is trained: the recipe was '{' '.join(before.specs) or 'plain'}' and is "
            f"'{' '.join(now.specs) or 'plain'}'. Only strategies that keep the result may come or go, no optimizers."
        )


def _bound(recipe: Recipe) -> list[str]:
    return [s.spec for s in recipe.strategies if s.result is not Result.SAME or s.exclusive == "optimizer"]


def latest_checkpoint(folder: Path) -> Path | None:
    """The last checkpoint that was written."""
    return max(checkpoints_in(folder), key=step_of, default=None)


def checkpoints_in(folder: Path) -> list[Path]:
    """Every checkpoint that was written to its end."""
    return [path.parent for path in folder.glob(f"checkpoint-*/{MANIFEST}") if step_of(path.parent) >= 0]


def step_of(checkpoint: Path) -> int:
    """After how many steps it was written; -1 if that is no checkpoint's name."""
    number = checkpoint.name.partition("-")[2]
    return int(number) if number.isdecimal() else -1


# Account: all that a run folder tells, whether the run came to its end or not.


History = list[dict[str, float | None]]


@dataclass(frozen=True, kw_only=True)
class RunView:
    """A run from its files alone."""

    folder: Path
    job: Job
    recipe: list[str]
    run: Run | None
    """None where it did not come to its end."""
    beginning: RunHeader | None
    """None where an earlier tightfit trained it."""
    history: History
    reached: int
    """The last step that is known to have been taken."""
    steps: int | None
    """How many there were to take."""
    checkpoint: Path | None

    @property
    def name(self) -> str:
        """As a person would call the run."""
        return self.folder.resolve().name

    @property
    def model(self) -> str:
        """The model's name, without the folders before it."""
        path = Path(self.job.model)
        if not path.is_absolute():
            return self.job.model
        return f"{path.parent.name}/model" if path.name == "model" else path.name

    @property
    def data(self) -> Data | None:
        """What it was trained on."""
        known = self.run or self.beginning
        return known.data if known else None

    @property
    def device(self) -> str | None:
        """Where it ran."""
        known = self.run or self.beginning
        return known.device if known else None

    @property
    def on_cpu(self) -> bool:
        """Whether memory is that of the whole process."""
        return "CPU" in (self.device or "CPU")

    @property
    def result(self) -> str:
        """What the recipe does to the trained model."""
        known = self.run or self.beginning
        return known.result if known else "same"

    @property
    def max_length(self) -> int:
        """Tokens a text was cut at."""
        known = self.run or self.beginning
        return known.max_length if known else self.job.max_length

    @property
    def parameters(self) -> tuple[int, int] | None:
        """How many learn, and how many there are."""
        known = self.run or self.beginning
        return (known.trainable_parameters, known.parameters) if known else None

    @property
    def metrics(self) -> Mapping[str, float]:
        """Of the weights that were kept; of the last evaluation where a run did not finish."""
        if self.run:
            return self.run.metrics
        evaluations = self.evaluations
        return {key: value for key, value in evaluations[-1].items() if value is not None} if evaluations else {}

    @property
    def evaluations(self) -> History:
        """The log's entries of evaluations."""
        return [entry for entry in self.history if entry.get("eval_loss") is not None]

    @property
    def measured_peak(self) -> int | None:
        """Bytes; None where nothing was measured."""
        return self.run.measured.peak_bytes if self.run and self.run.measured.phases else None

    @property
    def predicted_peak(self) -> int | None:
        """Bytes; None where it could not be foretold."""
        if self.run and self.run.predicted.peak_bytes:
            return self.run.predicted.peak_bytes
        return self.estimate["peak_bytes"] if self.estimate else None

    @property
    def estimate(self) -> dict[str, Any] | None:
        """The forecast by moment and kind."""
        return self.beginning.estimate if self.beginning else None

    @property
    def notes(self) -> list[str]:
        """What was said on the way."""
        known = self.run or self.beginning
        return known.notes if known else []

    @property
    def versions(self) -> dict[str, str]:
        """What was installed."""
        known = self.run or self.beginning
        return known.versions if known else {}

    @property
    def starts(self) -> list[tuple[str, int]]:
        """When it was started, and from which step."""
        return [(each.began, each.from_step) for each in self.beginning.attempts] if self.beginning else []

    @property
    def attempts(self) -> int:
        """How often it was started."""
        return max(len(self.starts), self.run.attempts if self.run else 1)

    def again(self, out: str, *options: str) -> str:
        """The command that runs it again elsewhere, with other options."""
        specs = ["tightfit", "train", str(self.folder / JOB_FILE), "--out", out, *options]
        return shlex.join(specs)

    @property
    def go_on(self) -> str:
        """The command that goes on with it."""
        budget = self.beginning.budget_bytes if self.beginning else None
        kept = ["--budget", f"{budget >> 20}MB"] if budget else []
        return shlex.join(["tightfit", "train", "--out", str(self.folder), "--resume", *kept])


def read_account(folder: Path) -> RunView:
    """Read a run folder; BadInput where it is none."""
    if not folder.is_dir():
        raise BadInput(f"There is no run folder '{folder}': give the folder that train wrote to.")
    run, checkpoint = load_run(folder) if (folder / FILE).is_file() else None, latest_checkpoint(folder)
    if run is None and not (folder / JOB_FILE).is_file():
        raise BadInput(
            f"'{folder}' is not a run (it has neither {FILE} nor {JOB_FILE}): give the folder that train wrote to."
        )
    state = _state(checkpoint) if checkpoint and run is None else {}
    job, recipe = (run.job, run.recipe) if run else _job(folder)
    beginning = load_header(folder)
    return RunView(
        folder=folder,
        job=job,
        recipe=recipe,
        run=run,
        beginning=beginning,
        history=run.history if run else _history(state),
        reached=run.steps if run else _number(state.get("global_step")) or 0,
        steps=run.steps if run else (beginning.steps if beginning else _number(state.get("max_steps"))),
        checkpoint=checkpoint,
    )


def _job(folder: Path) -> tuple[Job, list[str]]:
    values, recipe = read_job_file(folder / JOB_FILE)
    return Job(**values), recipe


def _state(checkpoint: Path) -> dict[str, Any]:
    """What a checkpoint tells of the steps before it; nothing where it cannot be read."""
    try:
        content = json.loads((checkpoint / "trainer_state.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _history(state: dict[str, Any]) -> History:
    entries = state.get("log_history")
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) else None
