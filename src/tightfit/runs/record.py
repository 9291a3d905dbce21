"""The run record (`run.json`): what happened in a run, as one JSON file that scripts can read."""

from __future__ import annotations

import json
import math
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from tightfit.data.labels import Labels
from tightfit.display import Display
from tightfit.errors import BadInput
from tightfit.job import Job
from tightfit.messages import Message, msg
from tightfit.system.files import atomic_write
from tightfit.tasks import find_task
from tightfit.tasks.quality import Quality, Scoring

FILE = "run.json"
_PACKAGES = ("tightfit", "torch", "transformers", "accelerate", "datasets", "tokenizers")


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class Measured(_Value):
    """Measured memory and time."""

    peak_bytes: int
    """Whole process on a CPU; reserved by torch on CUDA."""
    phases: dict[str, int]
    """The peak of each phase."""
    seconds: float
    """From the first step to the end, with evaluation and saving."""
    seconds_per_step: float | None = None
    """The median step."""
    epochs: list[float] | None = None
    """Seconds of each epoch, with evaluation and saving; the first includes computing cached features."""
    allocated_phases: dict[str, int] | None = None
    """On CUDA: the part of the reserved memory that tensors occupy."""
    context_bytes: int | None = None
    """On CUDA: what the CUDA context takes beside that; None if other processes' memory cannot be told from it."""
    total_seconds: float | None = None
    """From the start of `train` to the end, with everything before the first step."""
    activities: dict[str, float] | None = None
    """The seconds of each part of the total: reading the data, planning, …"""


class Predicted(_Value):
    """Memory and time predicted before the first step."""

    peak_bytes: int | None = None
    """Of what is measured, so on CUDA without the context; None if memory could not be estimated."""
    phases: dict[str, int] | None = None
    context_bytes: int | None = None
    """On CUDA: what the CUDA context was assumed to take beside that."""
    seconds_per_step: float | None = None
    """Only for a run with a budget."""


class DataSummary(_Value):
    """The training data in numbers."""

    train_rows: int
    validation_rows: int
    labels: tuple[str, ...]
    """The class names; empty for a task without classes."""
    positive_label: str | None = None
    """The class of which `f1` is the F1; None if it is macro F1."""
    text_columns: tuple[str, ...]
    label_columns: tuple[str, ...]
    truncated_rows: int
    """Training rows longer than the maximum length."""
    class_weights: tuple[float, ...] | None = None
    """The weight of each class in the loss; None if there are none."""
    language: str | None = None
    """Of the texts, such as zh; None if it is not known."""

    @property
    def classes(self) -> Labels:
        """The labels as tasks take them."""
        return Labels(self.labels, self.positive_label)


class Run(Display, _Value):
    """What happened: the job, the recipe, memory, time and quality."""

    folder: str
    job: Job
    recipe: list[str]
    result: str
    """How the recipe changes the trained model: same, close or different."""
    max_length: int
    """Tokens a text was truncated to."""
    device: str
    data: DataSummary
    parameters: int
    trainable_parameters: int
    steps: int
    skipped_steps: int | None = None
    """Those whose gradients overflowed in fp16, so that they changed no weights; None without a gradient scaler."""
    measured: Measured
    predicted: Predicted
    metrics: dict[str, float]
    """Metrics of the saved weights; `eval_constant_…` are those of a constant prediction (majority class or mean)."""
    quality: Quality | None = None
    """Per-label scores, confusion matrix and wrong predictions on the validation rows; None if not evaluated."""
    history: list[dict[str, float | None]]
    notes: list[Message]
    versions: dict[str, str]
    attempts: int = 1
    """How often the run was started or resumed; measured values are those of the last time."""

    @property
    def scoring(self) -> Scoring:
        """How the run is scored."""
        return find_task(self.job.task).scoring(self.data.classes, self.job.metric)

    def save(self) -> None:
        """Write run.json into the run folder atomically."""
        atomic_write(Path(self.folder) / FILE, self.to_json())

    def to_json(self) -> str:
        """One indented JSON object; NaN and infinity become null."""
        return json.dumps(_finite(self.model_dump(mode="json")), indent=1, ensure_ascii=False) + "\n"


def _finite(value: Any) -> Any:
    """JSON has neither NaN nor infinity."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def check_exists(folder: Path) -> None:
    """BadInput if there is no such folder."""
    if not folder.is_dir():
        raise BadInput(msg("There is no run folder '{folder}': give the folder that train wrote to.", folder=folder))


def load_run(folder: str | Path) -> Run:
    """Read the record of a finished run."""
    folder = Path(folder)
    check_exists(folder)
    if not (folder / FILE).is_file():
        raise BadInput(
            msg(
                "'{folder}' is not a finished run (it has no {file}): give the folder that train wrote to.",
                folder=folder,
                file=FILE,
            )
        )
    try:
        content: dict[str, Any] = json.loads((folder / FILE).read_text("utf-8"))
        return Run(**{**content, "folder": str(folder)})
    except (ValueError, TypeError, RecursionError, OSError):
        file = folder / FILE
        damaged = msg("{file} is damaged or was written by another version of tightfit: train again.", file=file)
        raise BadInput(damaged) from None


def versions() -> dict[str, str]:
    """Versions of Python and of the packages in use."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
