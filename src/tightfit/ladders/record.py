"""What a ladder found: a row for each rung, foretold beside measured."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tightfit.errors import BadInput
from tightfit.job import Job
from tightfit.recipe import Recipe
from tightfit.whole import write_whole

FILE = "ladder.json"


class _Value(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True, extra="forbid")


class Foretold(_Value):
    """What a rehearsal and the clock said before."""

    peak_bytes: int
    moment: str
    kinds: dict[str, int]
    """Bytes of each kind at the peak; `process` is what is there without any tensor."""
    seconds_per_step: float
    steps_per_epoch: int
    fits: bool | None
    """Whether the device has that much; None if its size is unknown."""


class Climb(_Value):
    """One training of a rung."""

    seed: int
    peak_bytes: int
    foretold_bytes: int | None
    """By the training itself, just before its first step."""
    moments: dict[str, int]
    seconds_per_step: float
    steps: int
    steps_per_epoch: int
    first_epoch: float | None = None
    """Seconds, where a frozen part ran once before the steps and took most of them."""
    metrics: dict[str, float]
    """Empty where only some steps were taken."""
    notes: list[str]


class Row(_Value):
    """A rung: its recipe, what was foretold, what was measured or why not."""

    recipe: list[str]
    result: str
    foretold: Foretold | None = None
    climbs: list[Climb] = Field(default_factory=list)
    failed: str | None = None
    """Why it was not measured, or how it died."""

    @property
    def title(self) -> str:
        """The recipe as a person would name it."""
        return " ".join(self.recipe) or "plain"

    @property
    def peak(self) -> int | None:
        """The measured peak; of several seeds the highest."""
        return max((climb.peak_bytes for climb in self.climbs), default=None)

    @property
    def moment(self) -> str | None:
        """When that was, or when it was foretold to be."""
        if not self.climbs:
            return self.foretold.moment if self.foretold else None
        moments = max(self.climbs, key=lambda climb: climb.peak_bytes).moments
        return max(moments, key=lambda name: moments[name], default=None)

    @property
    def foretold_peak(self) -> int | None:
        """As the training itself foretold it, or as it was foretold before."""
        said = [climb.foretold_bytes for climb in self.climbs if climb.foretold_bytes]
        return max(said) if said else self.foretold.peak_bytes if self.foretold else None

    @property
    def seconds_per_step(self) -> float | None:
        """Measured; of several seeds the median."""
        return statistics.median(climb.seconds_per_step for climb in self.climbs) if self.climbs else None

    @property
    def seconds_per_epoch(self) -> float | None:
        """The steps of an epoch at that pace; evaluation and saving come on top."""
        first = [climb.first_epoch for climb in self.climbs if climb.first_epoch]
        if first:
            return statistics.median(first)
        return self.seconds_per_step * self.climbs[0].steps_per_epoch if self.seconds_per_step else None

    def scores(self, metric: str) -> list[float]:
        """A metric of each seed, where the training ran to its end."""
        return [climb.metrics[f"eval_{metric}"] for climb in self.climbs if f"eval_{metric}" in climb.metrics]


class Ladder(_Value):
    """Recipes measured side by side."""

    job: Job
    device: str
    steps: int | None
    """Steps of each training; None if it ran to the job's end."""
    budget_bytes: int | None = None
    rows: list[Row]
    versions: dict[str, str]

    def row(self, recipe: Recipe) -> Row | None:
        """What is known of a recipe."""
        return next((row for row in self.rows if row.recipe == recipe.words), None)

    def save(self, folder: Path) -> None:
        """Write ladder.json, whole or not at all."""
        write_whole(folder / FILE, json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n")

    def to_json(self) -> dict[str, Any]:
        """The ladder for scripts."""
        return self.model_dump(mode="json")

    def __str__(self) -> str:
        from tightfit.report.ladder import ladder_as_text

        return ladder_as_text(self)

    def _repr_html_(self) -> str:
        from tightfit.report.ladder import ladder_as_html

        return ladder_as_html(self)


def load_ladder(file: Path) -> Ladder:
    """Read a ladder's record."""
    try:
        content: dict[str, Any] = json.loads(file.read_text("utf-8"))
        return Ladder(**content)
    except (ValidationError, ValueError, TypeError, RecursionError, OSError):
        raise BadInput(f"{file} is damaged or of another version of tightfit: give another --out.") from None
