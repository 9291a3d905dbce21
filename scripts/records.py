"""The committed records as values: the names of their files and keys are in this file only."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).resolve().parent.parent / "records"
CURRENT = ("hf_docs_sdpa_bert", "hf_docs_sdpa_gpt2")  # the other sources ran old versions, or do not say which
CURRENT_A = "A, current versions"
_OUTLIERS = 0.02  # share of the runs at either end that the error band leaves out

# Names of files, without .json.
COMPARISON = "comparison"
RECIPES_LARGE = "recipes-macbert-large"
RECIPES_MINILM = "recipes-minilm"
# Keys that carry a word of the vocabulary.
PREDICTED_BYTES = "predicted_bytes"
PREDICTED_SECONDS = "predicted_seconds"
PREDICTED_EACH = "predicted_before_during_after"
BASELINE = "baseline"
ESTIMATE = "estimate"
PHASES = "phases"  # inside an estimate
TRAINER = "transformers.Trainer"


def record(name: str) -> Any:
    return json.loads(path_of(name).read_text("utf-8"))


def path_of(name: str) -> Path:
    return RECORDS / f"{name}.json"


def printed_plan(language: str) -> str:
    """What `tightfit plan` printed for BERT-Large on a GPU of 4 GB, in English or Chinese."""
    name = "plan.txt" if language == "en" else f"plan.{language}.txt"
    return (RECORDS / name).read_text("utf-8").strip()


@dataclass(frozen=True)
class Device:
    """The plan for one device, and what the baseline would need there."""

    plan: dict[str, Any]
    baseline: dict[str, Any]


def devices() -> list[Device]:
    return [Device(plan, plan[BASELINE]) for plan in record("plans").values()]


@dataclass(frozen=True)
class MemoryRun:
    """One configuration, predicted and measured in a fresh process."""

    model: str
    parameters: int
    predicted: int
    measured: int

    @property
    def error(self) -> float:
        """Below zero: predicted too low."""
        return self.predicted / self.measured - 1


def memory_runs() -> list[MemoryRun]:
    return [
        MemoryRun(run["configuration"].partition(" ")[0], run["parameters"], run["predicted"], run["measured"])
        for run in record("memory")["runs"]
    ]


def errors_of(runs: list[MemoryRun]) -> tuple[float, float, float]:
    """Median, lowest, highest."""
    errors = [run.error for run in runs]
    return statistics.median(errors), min(errors), max(errors)


@dataclass(frozen=True)
class Spread:
    """The distribution of the absolute errors."""

    count: int
    models: int
    median: float
    p95: float
    too_low: int

    @classmethod
    def of(cls, runs: list[MemoryRun]) -> Spread:
        sizes = sorted(abs(run.error) for run in runs)
        too_low = sum(run.error < -0.02 for run in runs)
        p95 = sizes[int(0.95 * (len(sizes) - 1))]
        return cls(len(runs), len({run.model for run in runs}), statistics.median(sizes), p95, too_low)


@dataclass(frozen=True)
class LimitedRun:
    """One run under a hard memory limit of exactly its budget."""

    model: str
    budget: str
    finished: bool
    used: float = 0.0
    """Measured peak over budget."""
    ratio: float = 0.0
    """Measured over predicted."""
    recoveries: int | None = None
    """How often it had to plan again or to halve a micro-batch; None where the run did not note it."""

    @classmethod
    def of(cls, name: str, run: dict[str, Any]) -> LimitedRun:
        model, _, budget = name.partition(" ")
        if run["exit"] != 0:
            return cls(model, budget, finished=False)
        peak, noted = run["peak_bytes"], run.get("recoveries")
        recoveries = None if noted is None else len(noted)
        return cls(model, budget, True, peak / run["budget_bytes"], peak / run[PREDICTED_BYTES], recoveries)


def limited_runs() -> list[LimitedRun]:
    return [LimitedRun.of(name, run) for name, run in record("hard_limit")["runs"].items()]


@dataclass(frozen=True)
class ComparedRun:
    """One recipe beside transformers.Trainer."""

    recipe: str
    peak_bytes: int
    predicted_bytes: int | None
    ratio: float
    """Time of a step over Trainer's."""
    quartiles: tuple[float, float]


def compared_runs() -> list[ComparedRun]:
    return [
        ComparedRun(name, run["peak_bytes"], run[PREDICTED_BYTES], run["ratio"], tuple(run["ratio_quartiles"]))
        for name, run in record(COMPARISON)["runs"].items()
    ]


@dataclass(frozen=True)
class Demo:
    """The demo's memory, predicted and measured."""

    estimate: dict[str, Any]
    phases: dict[str, dict[str, int]]
    measured: dict[str, int]


def demo() -> Demo:
    found = record("demo")
    return Demo(found[ESTIMATE], found[ESTIMATE][PHASES], found["measured"])


def time_errors(alone: dict[str, Any]) -> list[float]:
    """Predicted over measured time, minus one: once for each calibration of the machine."""
    predicted = alone.get(PREDICTED_EACH, [alone[PREDICTED_SECONDS]])
    return [seconds / alone["seconds_per_step"] - 1 for seconds in predicted]


def published_rows() -> list[dict[str, Any]]:
    return record("published")["rows"]


def published_errors() -> dict[str, list[float]]:
    """By source, of the rows that could be simulated."""
    errors: dict[str, list[float]] = {}
    for row in published_rows():
        if row["error"] is not None:
            errors.setdefault(row["source"], []).append(row["error"])
    return errors


def published_grades() -> dict[str, list[float]]:
    """By how much of the configuration the source states; of grade A also those that ran current versions."""
    rows = [row for row in published_rows() if row["error"] is not None]
    current = [row["error"] for row in rows if row["grade"] == "A" and row["source"] in CURRENT]
    grades = {grade: [row["error"] for row in rows if row["grade"] == grade] for grade in "AB"}
    return {CURRENT_A: current, **grades}


def error_band_file() -> str:
    """Measured over predicted, low and high: our own runs on a CPU, for GPUs those that others published."""
    cpu = [1 / (1 + run.error) for run in memory_runs()]
    gpu = [1 / (1 + each) for errors in published_errors().values() for each in errors]
    return json.dumps({"cpu": _band(cpu), "cuda": _band(gpu)}) + "\n"


def _band(ratios: list[float]) -> list[float]:
    ordered = sorted(ratios)
    skip = int(_OUTLIERS * len(ordered))
    return [round(min(ordered[skip], 1.0), 3), round(max(ordered[-1 - skip], 1.0), 3)]


# GPU memory, predicted and that of torch's allocator on a fake GPU.


@dataclass(frozen=True)
class GpuCell:
    """A recipe on a model on a GPU: errors of the predicted peaks, as shares."""

    model: str
    recipe: str
    precision: str
    capability: str
    expandable: bool
    """Whether the allocator's segments were expandable, as in training, or as torch has them."""
    live: float
    reserved: float

    @property
    def is_live_exact(self) -> bool:
        """Within 0.1 %."""
        return abs(self.live) <= 0.001

    @property
    def is_reserved_in_range(self) -> bool:
        """Not more than 3 % too low and 5 % too high."""
        return -0.03 <= self.reserved <= 0.05


def gpu_cells() -> list[GpuCell]:
    """The cells that were measured; one that failed has no phases."""
    return [
        GpuCell(
            *(cell[name] for name in ("model", "recipe", "precision", "capability", "expandable")),
            *(_peak_error(cell[PHASES].values(), which) for which in ("live", "reserved")),
        )
        for cell in record("gpu")["cells"]
        if PHASES in cell
    ]


def _peak_error(phases: Any, which: str) -> float:
    predicted, measured = (max(phase[which][index] for phase in phases) for index in (0, 1))
    return predicted / measured - 1
