"""Account: all that a run folder tells, whether the run came to its end or not."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tightfit.beginning import Beginning, load_beginning
from tightfit.checkpoints import newest_checkpoint
from tightfit.errors import BadInput
from tightfit.job import Job, read_job_file
from tightfit.record import FILE, Data, Run

History = list[dict[str, float | None]]
_JOB = "job.yaml"
_FIRST_MEASURED = {"peak_bytes": 0, "moments": {}, "seconds": 0.0}


@dataclass(frozen=True, kw_only=True)
class Account:
    """A run from its files alone."""

    folder: Path
    job: Job
    recipe: list[str]
    run: Run | None
    """None where it did not come to its end."""
    beginning: Beginning | None
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
        return self.run.measured.peak_bytes if self.run and self.run.measured.moments else None

    @property
    def foretold_peak(self) -> int | None:
        """Bytes; None where it could not be foretold."""
        if self.run and self.run.predicted.peak_bytes:
            return self.run.predicted.peak_bytes
        return self.bill["peak_bytes"] if self.bill else None

    @property
    def bill(self) -> dict[str, Any] | None:
        """The forecast by moment and kind."""
        return self.beginning.bill if self.beginning else None

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
        words = ["tightfit", "train", str(self.folder / _JOB), "--out", out, *options]
        return shlex.join(words)

    @property
    def go_on(self) -> str:
        """The command that goes on with it."""
        budget = self.beginning.budget_bytes if self.beginning else None
        kept = ["--budget", f"{budget >> 20}MB"] if budget else []
        return shlex.join(["tightfit", "train", "--out", str(self.folder), "--resume", *kept])


def read_account(folder: Path) -> Account:
    """Read a run folder; BadInput where it is none."""
    if not folder.is_dir():
        raise BadInput(f"There is no run folder '{folder}': give the folder that train wrote to.")
    run, checkpoint = _run(folder), newest_checkpoint(folder)
    if run is None and not (folder / _JOB).is_file():
        raise BadInput(
            f"'{folder}' is not a run (it has neither {FILE} nor {_JOB}): give the folder that train wrote to."
        )
    state = _state(checkpoint) if checkpoint and run is None else {}
    job, recipe = (run.job, run.recipe) if run else _job(folder)
    beginning = load_beginning(folder)
    return Account(
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


def _run(folder: Path) -> Run | None:
    """Its record; one of an earlier tightfit lacks some of today's keys."""
    if not (folder / FILE).is_file():
        return None
    try:
        content = json.loads((folder / FILE).read_text("utf-8"))
        job = content["job"]
        early: dict[str, Any] = dict.fromkeys(("parameters", "trainable_parameters", "steps"), 0)
        early |= {
            "recipe": [],
            "result": "same",
            "device": "",
            "history": [],
            "notes": [],
            "versions": {},
            "metrics": {},
        }
        early |= {"max_length": job.get("max_length", 128), "predicted": {}, "measured": {}}
        content = {**early, **content, "folder": str(folder)}
        content["measured"] = {**_FIRST_MEASURED, **content["measured"]}
        return Run(**content)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OSError):
        raise BadInput(f"{folder / FILE} is damaged or of another version of tightfit: train again.") from None


def _job(folder: Path) -> tuple[Job, list[str]]:
    values, recipe = read_job_file(folder / _JOB)
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
