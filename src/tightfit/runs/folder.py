"""Run folders: which one may be started or resumed, and a view of a run read from its files."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tightfit.data.labels import Labels
from tightfit.data.split import FOLDER
from tightfit.errors import BadInput, OutputError
from tightfit.job import Job, read_job_file
from tightfit.messages import Message, msg
from tightfit.runs.header import FILE as HEADER_FILE
from tightfit.runs.header import RunHeader, load_header
from tightfit.runs.lock import FILE as LOCK_FILE
from tightfit.runs.record import FILE, DataSummary, Run, check_exists, load_run
from tightfit.system.files import is_stale
from tightfit.tasks import find_task
from tightfit.tasks.quality import Scoring

JOB_FILE = "job.yaml"
MANIFEST = "manifest.json"  # in a checkpoint: the list of files, and what transformers does not save


def check_run_folder(folder: Path, resume: bool) -> None:
    """A new run needs an empty folder, a resumed one a folder that a run wrote."""
    if resume and not (folder / JOB_FILE).is_file():
        raise OutputError(
            msg(
                "There is no run to resume in '{folder}': leave out --resume, or give the folder of a run.",
                folder=folder,
            )
        )
    if not resume and folder.is_dir() and not all(_is_leftover(path) for path in folder.iterdir()):
        raise OutputError(
            msg(
                "The folder '{folder}' is not empty: add --resume to continue its run, or give another --out.",
                folder=folder,
            )
        )


def _is_leftover(path: Path) -> bool:
    """Whether a process that was killed before its run started left this file, or this one has just locked it."""
    written_first = (path.name == FOLDER and path.is_dir()) or path.name == HEADER_FILE
    return path.name == LOCK_FILE or is_stale(path) or (written_first and not (path.parent / JOB_FILE).exists())


def discard_start(folder: Path) -> None:
    """Remove the files of a run that failed before its first step, so that the folder can be used again."""
    for name in (JOB_FILE, HEADER_FILE):
        (folder / name).unlink(missing_ok=True)
    for name in ("checkpoint-0", FOLDER):
        shutil.rmtree(folder / name, ignore_errors=True)
    if not any(folder.iterdir()):
        folder.rmdir()


def latest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint with the most steps."""
    return max(checkpoints_in(folder), key=step_of, default=None)


def checkpoints_in(folder: Path) -> list[Path]:
    """Every checkpoint that was written completely."""
    return [path.parent for path in folder.glob(f"checkpoint-*/{MANIFEST}") if step_of(path.parent) >= 0]


def step_of(checkpoint: Path) -> int:
    """The step of a checkpoint, from its name; -1 for any other name."""
    number = checkpoint.name.partition("-")[2]
    return int(number) if number.isdecimal() else -1


History = list[dict[str, float | None]]


@dataclass(frozen=True, kw_only=True)
class RunView:
    """A run as its files describe it, finished or not."""

    folder: Path
    job: Job
    recipe: list[str]
    run: Run | None
    """None if it did not finish."""
    header: RunHeader | None
    """None if it is missing or was written by another version."""
    history: History
    last_step: int
    """Of the run, or of its last checkpoint."""
    steps: int | None
    """Optimizer steps in total."""
    checkpoint: Path | None

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.folder.resolve().name

    @property
    def model(self) -> str:
        """The model's name, without the folders before it."""
        path = Path(self.job.model)
        if not path.is_absolute():
            return self.job.model
        return f"{path.parent.name}/model" if path.name == "model" else path.name

    @property
    def data(self) -> DataSummary | None:
        """The training data in numbers."""
        known = self.run or self.header
        return known.data if known else None

    @property
    def scoring(self) -> Scoring:
        """How the run is scored."""
        return find_task(self.job.task).scoring(self.data.classes if self.data else Labels(), self.job.metric)

    @property
    def device(self) -> str | None:
        """The device it ran on."""
        known = self.run or self.header
        return known.device if known else None

    @property
    def on_cpu(self) -> bool:
        """Whether memory means that of the whole process."""
        return "CPU" in (self.device or "CPU")

    @property
    def result(self) -> str:
        """How the recipe changes the trained model: same, close or different."""
        known = self.run or self.header
        return known.result if known else "same"

    @property
    def max_length(self) -> int:
        """Tokens a text was truncated to."""
        known = self.run or self.header
        return known.max_length if known else self.job.max_length

    @property
    def parameters(self) -> tuple[int, int] | None:
        """Trainable and all parameters."""
        known = self.run or self.header
        return (known.trainable_parameters, known.parameters) if known else None

    @property
    def metrics(self) -> Mapping[str, float]:
        """Of the saved weights; of the last evaluation if the run did not finish."""
        if self.run:
            return self.run.metrics
        evaluations = self.evaluations
        return {key: value for key, value in evaluations[-1].items() if value is not None} if evaluations else {}

    @property
    def evaluations(self) -> History:
        """The evaluations among the log entries."""
        return [entry for entry in self.history if entry.get("eval_loss") is not None]

    @property
    def measured_peak(self) -> int | None:
        """Bytes; None if nothing was measured."""
        return self.run.measured.peak_bytes if self.run and self.run.measured.phases else None

    @property
    def predicted_peak(self) -> int | None:
        """Bytes; None if memory could not be estimated."""
        if self.run and self.run.predicted.peak_bytes:
            return self.run.predicted.peak_bytes
        return self.estimate["peak_bytes"] if self.estimate else None

    @property
    def estimate(self) -> dict[str, Any] | None:
        """The memory estimate by phase and kind."""
        return self.header.estimate if self.header else None

    @property
    def notes(self) -> list[Message]:
        """Lines that the run logged."""
        known = self.run or self.header
        return known.notes if known else []

    @property
    def versions(self) -> dict[str, str]:
        """Versions of Python and of the packages."""
        known = self.run or self.header
        return known.versions if known else {}

    @property
    def starts(self) -> list[tuple[str, int]]:
        """When it was started or resumed, and from which step."""
        return [(each.started_at, each.from_step) for each in self.header.attempts] if self.header else []

    @property
    def attempts(self) -> int:
        """How often it was started or resumed."""
        return max(len(self.starts), self.run.attempts if self.run else 1)

    def rerun_command(self, out: str, *options: str) -> str:
        """The command that runs the job again in another folder, with other options."""
        return shlex.join(["tightfit", "train", str(self.folder / JOB_FILE), "--out", out, *options])

    @property
    def resume_command(self) -> str:
        """The command that resumes the run."""
        return resume_command(self.folder)


def resume_command(folder: Path) -> str:
    """The command that resumes the run in a folder, with its budget."""
    header = load_header(folder)
    options = ["--budget", f"{header.budget_bytes >> 20}MB"] if header and header.budget_bytes else []
    return shlex.join(["tightfit", "train", "--out", str(folder), "--resume", *options])


def read_run_folder(folder: Path) -> RunView:
    """Read a run folder; BadInput if it is none."""
    check_exists(folder)
    run, checkpoint = load_run(folder) if (folder / FILE).is_file() else None, latest_checkpoint(folder)
    if run is None and not (folder / JOB_FILE).is_file():
        raise BadInput(
            msg(
                "'{folder}' is not a run (it has neither {record} nor {job}): give the folder that train wrote to.",
                folder=folder,
                record=FILE,
                job=JOB_FILE,
            )
        )
    state = trainer_state(checkpoint) if checkpoint and run is None else {}
    job, recipe = (run.job, run.recipe) if run else _job(folder)
    header = load_header(folder)
    return RunView(
        folder=folder,
        job=job,
        recipe=recipe,
        run=run,
        header=header,
        history=run.history if run else _history(state),
        last_step=run.steps if run else _int_or_none(state.get("global_step")) or 0,
        steps=run.steps if run else (header.steps if header else _int_or_none(state.get("max_steps"))),
        checkpoint=checkpoint,
    )


def _job(folder: Path) -> tuple[Job, list[str]]:
    values, recipe = read_job_file(folder / JOB_FILE)
    return Job(**values), recipe


def trainer_state(checkpoint: Path) -> dict[str, Any]:
    """The trainer state in a checkpoint; empty if it cannot be read."""
    try:
        content = json.loads((checkpoint / "trainer_state.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _history(state: dict[str, Any]) -> History:
    entries = state.get("log_history")
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _int_or_none(value: Any) -> int | None:
    return value if isinstance(value, int) else None
