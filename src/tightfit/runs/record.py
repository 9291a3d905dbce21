"""Record: what happened in a run, as one JSON file that others can script against."""

from __future__ import annotations

import json
import math
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from tightfit.display import HTMLDisplay
from tightfit.errors import BadInput
from tightfit.files import write_whole
from tightfit.job import Job

FILE = "run.json"
_PACKAGES = ("tightfit", "torch", "transformers", "accelerate", "datasets", "tokenizers")


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class Measured(_Value):
    """What the meter and the clock saw."""

    peak_bytes: int
    """Whole process on a CPU; reserved by torch on CUDA."""
    phases: dict[str, int]
    """The peak of each moment."""
    seconds: float
    """From the first step to the end, evaluation and saving included."""
    seconds_per_step: float | None = None
    """Median over the steps."""
    epochs: list[float] | None = None
    """Seconds of each epoch, with its evaluation and saving; a frozen part that runs only once is in the first."""
    allocated_phases: dict[str, int] | None = None
    """On CUDA: the tensors' share of what was reserved."""


class Predicted(_Value):
    """What was expected before the first step."""

    peak_bytes: int | None = None
    """None where it could not be foretold."""
    phases: dict[str, int] | None = None
    seconds_per_step: float | None = None
    """Only where the training kept to a budget."""


class Data(_Value):
    """What was trained on."""

    train_rows: int
    validation_rows: int
    labels: tuple[str, ...]
    text_columns: tuple[str, ...]
    label_column: str
    truncated_rows: int
    """Rows longer than the limit."""


class Run(HTMLDisplay, _Value):
    """What happened: the job, the recipe, memory, time and quality."""

    folder: str
    job: Job
    recipe: list[str]
    result: str
    """What the recipe does to the trained model: same, close or different."""
    max_length: int
    """Tokens a text was cut at."""
    device: str
    data: Data
    parameters: int
    trainable_parameters: int
    steps: int
    measured: Measured
    predicted: Predicted
    metrics: dict[str, float]
    history: list[dict[str, float | None]]
    notes: list[str]
    versions: dict[str, str]
    attempts: int = 1
    """How often it was started; what was measured is of the last time."""

    def save(self) -> None:
        """Write run.json into the run folder, whole or not at all."""
        write_whole(Path(self.folder) / FILE, self.to_json())

    def to_json(self) -> str:
        """One JSON object, readable by eye; what is no number is null."""
        return json.dumps(_numbers(self.model_dump(mode="json")), indent=1, ensure_ascii=False) + "\n"


def _numbers(value: Any) -> Any:
    """JSON knows neither NaN nor infinity."""
    if isinstance(value, dict):
        return {key: _numbers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_numbers(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def load_run(folder: str | Path) -> Run:
    """Read a run folder's record."""
    folder = Path(folder)
    if not (folder / FILE).is_file():
        raise BadInput(f"'{folder}' is not a finished run (it has no {FILE}): give the folder that train wrote to.")
    try:
        content: dict[str, Any] = json.loads((folder / FILE).read_text("utf-8"))
        return Run(**{**content, "folder": str(folder)})
    except (ValueError, TypeError, RecursionError, OSError):
        raise BadInput(f"{folder / FILE} is damaged or of another version of tightfit: train again.") from None


def versions() -> dict[str, str]:
    """What was installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
