"""What a ladder found: a row for each rung, foretold beside measured."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tightfit.device import find_device
from tightfit.display import Display
from tightfit.errors import BadInput, suggest
from tightfit.files import write_whole
from tightfit.job import Job
from tightfit.strategies.recipe import Recipe

FILE = "comparison.json"
KINDS = ("process", "weights", "gradients", "optimizer state", "activations", "temporary")
"""What is told apart in tables and pictures."""


class _Value(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True, extra="forbid")


class RowPrediction(_Value):
    """What a rehearsal and the clock said before."""

    peak_bytes: int
    phase: str
    kinds: dict[str, int]
    """Bytes of each kind at the peak; `process` is what is there without any tensor."""
    seconds_per_step: float
    steps_per_epoch: int
    fits: bool | None
    """Whether the device has that much; None if its size is unknown."""


class Measurement(_Value):
    """One training of a rung."""

    seed: int
    peak_bytes: int
    predicted_bytes: int | None
    """By the training itself, just before its first step."""
    phases: dict[str, int]
    seconds_per_step: float
    steps: int
    steps_per_epoch: int
    first_epoch: float | None = None
    """Seconds, where a frozen part ran once before the steps and took most of them."""
    metrics: dict[str, float]
    """Empty where only some steps were taken."""
    notes: list[str]


class ComparisonRow(_Value):
    """A rung: its recipe, what was foretold, what was measured or why not."""

    recipe: list[str]
    result: str
    predicted: RowPrediction | None = None
    measurements: list[Measurement] = Field(default_factory=list)
    failed: str | None = None
    """Why it was not measured, or how it died."""

    @property
    def title(self) -> str:
        """The recipe as a person would name it."""
        return " ".join(self.recipe) or "baseline"

    @property
    def peak(self) -> int | None:
        """The measured peak; of several seeds the highest."""
        return max((measurement.peak_bytes for measurement in self.measurements), default=None)

    @property
    def phase(self) -> str | None:
        """When that was, or when it was foretold to be."""
        if not self.measurements:
            return self.predicted.phase if self.predicted else None
        phases = max(self.measurements, key=lambda measurement: measurement.peak_bytes).phases
        return max(phases, key=lambda name: phases[name], default=None)

    @property
    def predicted_peak(self) -> int | None:
        """As the training itself foretold it, or as it was foretold before."""
        said = [measurement.predicted_bytes for measurement in self.measurements if measurement.predicted_bytes]
        return max(said) if said else self.predicted.peak_bytes if self.predicted else None

    @property
    def seconds_per_step(self) -> float | None:
        """Measured; of several seeds the median."""
        return (
            statistics.median(measurement.seconds_per_step for measurement in self.measurements)
            if self.measurements
            else None
        )

    @property
    def seconds_per_epoch(self) -> float | None:
        """The steps of an epoch at that pace; evaluation and saving come on top."""
        first = [measurement.first_epoch for measurement in self.measurements if measurement.first_epoch]
        if first:
            return statistics.median(first)
        return self.seconds_per_step * self.measurements[0].steps_per_epoch if self.seconds_per_step else None

    def scores(self, metric: str) -> list[float]:
        """A metric of each seed, where the training ran to its end."""
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
    """Steps of each training; None if it ran to the job's end."""
    budget_bytes: int | None = None
    rows: list[ComparisonRow]
    versions: dict[str, str]

    def row(self, recipe: Recipe) -> ComparisonRow | None:
        """What is known of a recipe."""
        return next((row for row in self.rows if row.recipe == recipe.specs), None)

    def save(self, folder: Path) -> None:
        """Write ladder.json, whole or not at all."""
        write_whole(folder / FILE, json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n")

    def to_json(self) -> dict[str, Any]:
        """The ladder for scripts."""
        return self.model_dump(mode="json")


def kinds_of(row: ComparisonRow) -> dict[str, int]:
    """What was foretold at the peak, the process first; small kinds together."""
    kinds = dict(row.predicted.kinds) if row.predicted else {}
    shown = {kind: kinds.pop(kind, 0) for kind in KINDS}
    shown["temporary"] += sum(kinds.values())
    return shown


def load_comparison(file: Path) -> Comparison:
    """Read a ladder's record."""
    try:
        content: dict[str, Any] = json.loads(file.read_text("utf-8"))
        return Comparison(**content)
    except (ValidationError, ValueError, TypeError, RecursionError, OSError):
        raise BadInput(f"{file} is damaged or of another version of tightfit: give another --out.") from None


# Rungs: the recipes that a ladder is made of.


PRESETS = ("tutorial", "ours", "all")

_OURS = (
    "micro-batch:size={eighth}",
    "micro-batch:size={eighth} adafactor",
    "chunked-layers:size={quarter} adamw-16bit optimizer-in-backward",
    "chunked-layers:size={quarter} adafactor optimizer-in-backward",
)


def find_recipes(recipes: str | Sequence[str], job: Job, device: str | None) -> list[Recipe]:
    """A preset by its name, or recipes as they are written."""
    if isinstance(recipes, str):
        return _preset(recipes, job, find_device(device).kind)
    parsed = [Recipe.parse([] if text.strip() == "baseline" else text.split()) for text in recipes]
    if not parsed:
        raise BadInput(
            'A comparison needs at least one recipe: give --recipe "micro-batch:size=8 gradient-checkpointing", '
            "or a --preset."
        )
    return list(dict.fromkeys(parsed))


def _preset(name: str, job: Job, device: str) -> list[Recipe]:
    if name not in PRESETS:
        raise BadInput(f"There is no preset '{name}': {suggest(name, PRESETS)}")
    recipes = [] if name == "ours" else _tutorial(job)
    return recipes if name == "tutorial" else [*(recipes or [Recipe()]), *_ours(job, device)]


def _tutorial(job: Job) -> list[Recipe]:
    """What the tutorials teach: each rung adds one thing to the last."""
    added = ["micro-batch:size=1", "gradient-checkpointing", "adafactor", "freeze:cache=false"]
    if job.max_length >= 4:
        added.append(f"max-length:tokens={job.max_length // 2}")
    return [Recipe.parse(specs) for specs in accumulate(([spec] for spec in added), initial=[])]


def _ours(job: Job, device: str) -> list[Recipe]:
    """Every layer trained, from the fastest to the smallest. Cards choose the kernel of attention by themselves."""
    sizes = {"eighth": max(1, job.batch_size // 8), "quarter": max(1, job.batch_size // 4)}
    kernel = ["tiled-attention"] if device == "cpu" else []
    return [Recipe.parse([*kernel, *specs.format(**sizes).split()]) for specs in _OURS]


# Shrinking: which kinds of memory a rung made smaller, against the rung it grew out of.


_WORTH_SAYING = 0.02  # of the peak before


def parent_row(comparison: Comparison, row: ComparisonRow) -> ComparisonRow | None:
    """The largest earlier rung whose strategies are all in this one; plain is in every one."""
    earlier = comparison.rows[: comparison.rows.index(row)]
    inside = [other for other in earlier if set(other.recipe) < set(row.recipe)]
    return max(inside, key=lambda other: len(other.recipe), default=None)


def savings(comparison: Comparison, row: ComparisonRow) -> dict[str, int]:
    """Bytes that each kind lost from peak to peak, the most first; what grew is negative."""
    before = parent_row(comparison, row)
    if before is None or before.predicted is None or row.predicted is None:
        return {}
    kinds = {**before.predicted.kinds, **row.predicted.kinds}
    kinds.pop("process", None)  # differs a little from process to process, whatever it trains
    lost = {kind: before.predicted.kinds.get(kind, 0) - row.predicted.kinds.get(kind, 0) for kind in kinds}
    least = _WORTH_SAYING * before.predicted.peak_bytes
    worth = {kind: size for kind, size in lost.items() if abs(size) >= least}
    return dict(sorted(worth.items(), key=lambda item: -item[1]))
