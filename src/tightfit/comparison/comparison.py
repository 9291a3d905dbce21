"""Comparison results: one row per recipe, with predicted and measured memory and time."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tightfit.data.labels import Labels
from tightfit.device import find_device
from tightfit.display import Display
from tightfit.errors import BadInput, suggest
from tightfit.job import Job
from tightfit.messages import Message, msg
from tightfit.strategies.recipe import Recipe
from tightfit.system.files import atomic_write
from tightfit.tasks import find_task
from tightfit.tasks.quality import Scoring

FILE = "comparison.json"
KINDS = ("process", "weights", "gradients", "optimizer state", "activations", "temporary")
"""The kinds of memory shown separately in tables and charts."""


class _Value(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True, extra="forbid")


class RowPrediction(_Value):
    """Memory and time predicted by the simulation before training."""

    peak_bytes: int
    phase: str
    kinds: dict[str, int]
    """Bytes of each kind at the peak; `process` is the process without any tensor."""
    seconds_per_step: float | None
    """None for a GPU whose speed is not known."""
    steps_per_epoch: int
    fits: bool | None
    """Whether it fits the device; None if the device's memory is unknown."""


class Measurement(_Value):
    """One training run of a recipe."""

    seed: int
    peak_bytes: int
    predicted_bytes: int | None
    """Predicted by the run itself, before its first step."""
    phases: dict[str, int]
    seconds_per_step: float
    steps: int
    steps_per_epoch: int
    first_epoch_seconds: float | None = None
    """Seconds of the first epoch, if the features of a frozen encoder were computed before its steps; else None."""
    metrics: dict[str, float]
    """Empty unless the run trained for all epochs."""
    labels: tuple[str, ...] = ()
    positive_label: str | None = None
    """The class of which `f1` is the F1; None if it is macro F1."""
    notes: list[Message]
    cpu_of_others: float = 0.0
    """The share of this machine's CPU that other processes used meanwhile."""


class ComparisonRow(_Value):
    """One recipe: what was predicted and what was measured, or why it was not."""

    recipe: list[str]
    result: str
    predicted: RowPrediction | None = None
    measurements: list[Measurement] = Field(default_factory=list)
    failed: Message | None = None
    """Why the recipe was not measured, or how its training failed."""

    @property
    def title(self) -> str:
        """The recipe's specs; `baseline` if it has none."""
        return " ".join(self.recipe) or msg("baseline")

    @property
    def peak(self) -> int | None:
        """The measured peak in bytes, the highest of all seeds."""
        return max((measurement.peak_bytes for measurement in self.measurements), default=None)

    @property
    def phase(self) -> str | None:
        """The phase of the measured peak, else of the predicted one."""
        if not self.measurements:
            return self.predicted.phase if self.predicted else None
        phases = max(self.measurements, key=lambda measurement: measurement.peak_bytes).phases
        return max(phases, key=lambda name: phases[name], default=None)

    @property
    def predicted_peak(self) -> int | None:
        """The peak predicted by the run itself, else by the simulation before it."""
        peaks = [measurement.predicted_bytes for measurement in self.measurements if measurement.predicted_bytes]
        return max(peaks) if peaks else self.predicted.peak_bytes if self.predicted else None

    @property
    def seconds_per_step(self) -> float | None:
        """The measured median over all seeds."""
        return (
            statistics.median(measurement.seconds_per_step for measurement in self.measurements)
            if self.measurements
            else None
        )

    @property
    def seconds_per_epoch(self) -> float | None:
        """Training time of one epoch; evaluation and saving are extra."""
        first = [
            measurement.first_epoch_seconds for measurement in self.measurements if measurement.first_epoch_seconds
        ]
        if first:
            return statistics.median(first)
        return self.seconds_per_step * self.measurements[0].steps_per_epoch if self.seconds_per_step else None

    @property
    def cpu_of_others(self) -> float:
        """The largest share of the CPU that other processes used while it was measured."""
        return max((measurement.cpu_of_others for measurement in self.measurements), default=0.0)

    def scores(self, metric: str) -> list[float]:
        """A metric of each seed whose training finished."""
        return [
            measurement.metrics[f"eval_{metric}"]
            for measurement in self.measurements
            if f"eval_{metric}" in measurement.metrics
        ]


class Comparison(Display, _Value):
    """Recipes measured side by side."""

    job: Job
    device: str
    steps: int | None
    """Steps of each run; None if it trained for all epochs."""
    budget_bytes: int | None = None
    rows: list[ComparisonRow]
    versions: dict[str, str]

    @property
    def scoring(self) -> Scoring:
        """How the recipes are scored; which labels there are is known after the first measurement."""
        measured = next((each for row in self.rows for each in row.measurements if each.labels), None)
        labels = Labels(measured.labels, measured.positive_label) if measured else Labels()
        return find_task(self.job.task).scoring(labels, self.job.metric)

    def row(self, recipe: Recipe) -> ComparisonRow | None:
        """The row of a recipe; None if it is not in the comparison."""
        return next((row for row in self.rows if row.recipe == recipe.specs), None)

    def save(self, folder: Path) -> None:
        """Write comparison.json atomically."""
        atomic_write(folder / FILE, json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n")

    def to_json(self) -> dict[str, Any]:
        """The comparison as JSON values."""
        return self.model_dump(mode="json")


def kinds_of(row: ComparisonRow) -> dict[str, int]:
    """Predicted bytes at the peak, by kind, the process first; small kinds count as temporary."""
    kinds = dict(row.predicted.kinds) if row.predicted else {}
    shown = {kind: kinds.pop(kind, 0) for kind in KINDS}
    shown["temporary"] += sum(kinds.values())
    return shown


def load_comparison(file: Path) -> Comparison:
    """Read a comparison.json."""
    try:
        content: dict[str, Any] = json.loads(file.read_text("utf-8"))
        return Comparison(**content)
    except (ValidationError, ValueError, TypeError, RecursionError, OSError):
        damaged = msg("{file} is damaged or from another version of tightfit: give another --out.", file=file)
        raise BadInput(damaged) from None


PRESETS = ("tutorial", "tightfit", "all")

_EVERY_LAYER = (
    "micro-batch:size={eighth}",
    "micro-batch:size={eighth} adafactor",
    "chunked-layers:size={quarter} adamw-16bit optimizer-in-backward",
    "chunked-layers:size={quarter} adafactor optimizer-in-backward",
)


def find_recipes(recipes: str | Sequence[str], job: Job, device: str | None) -> list[Recipe]:
    """The recipes of a preset, or recipes given as text; `baseline` is the one without strategies."""
    if isinstance(recipes, str):
        return _preset(recipes, job, find_device(device).kind)
    parsed = [Recipe.parse([] if text.strip() == "baseline" else [text]) for text in recipes]
    if not parsed:
        raise BadInput(
            msg(
                'A comparison needs at least one recipe: give --recipe "micro-batch:size=8 gradient-checkpointing", '
                "or a --preset."
            )
        )
    return list(dict.fromkeys(parsed))


def _preset(name: str, job: Job, device: str) -> list[Recipe]:
    if name not in PRESETS:
        raise BadInput(msg("There is no preset '{name}': {suggestion}", name=name, suggestion=suggest(name, PRESETS)))
    recipes = [] if name == "tightfit" else _tutorial(job)
    return recipes if name == "tutorial" else [*(recipes or [Recipe()]), *_every_layer(job, device)]


def _tutorial(job: Job) -> list[Recipe]:
    """The recipes of the usual tutorials; each adds one strategy to the one before."""
    added = ["micro-batch:size=1", "gradient-checkpointing", "adafactor", "freeze:cache=false"]
    if job.max_length >= 4:
        added.append(f"max-length:tokens={job.max_length // 2}")
    return [Recipe.parse(specs) for specs in accumulate(([spec] for spec in added), initial=[])]


def _every_layer(job: Job, device: str) -> list[Recipe]:
    """Recipes that train every layer, from the fastest to the smallest; GPUs need no tiled attention."""
    sizes = {"eighth": max(1, job.batch_size // 8), "quarter": max(1, job.batch_size // 4)}
    kernel = ["tiled-attention"] if device == "cpu" else []
    return [Recipe.parse([*kernel, *specs.format(**sizes).split()]) for specs in _EVERY_LAYER]


_MIN_SHARE = 0.02  # of the parent's peak; smaller differences are not listed


def parent_row(comparison: Comparison, row: ComparisonRow) -> ComparisonRow | None:
    """The earlier row with the most strategies that are all in this one; the baseline is a parent of every row."""
    earlier = comparison.rows[: comparison.rows.index(row)]
    inside = [other for other in earlier if set(other.recipe) < set(row.recipe)]
    return max(inside, key=lambda other: len(other.recipe), default=None)


def savings(comparison: Comparison, row: ComparisonRow) -> dict[str, int]:
    """Bytes of each kind saved at the peak against the parent row, largest first; negative if it grew."""
    before = parent_row(comparison, row)
    if before is None or before.predicted is None or row.predicted is None:
        return {}
    kinds = {**before.predicted.kinds, **row.predicted.kinds}
    kinds.pop("process", None)  # differs slightly between processes, independent of the recipe
    saved = {kind: before.predicted.kinds.get(kind, 0) - row.predicted.kinds.get(kind, 0) for kind in kinds}
    smallest = _MIN_SHARE * before.predicted.peak_bytes
    listed = {kind: size for kind, size in saved.items() if abs(size) >= smallest}
    return dict(sorted(listed.items(), key=lambda item: -item[1]))
