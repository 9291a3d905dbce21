"""The committed records, and what they say of the rehearsal's accuracy."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).resolve().parent.parent / "records"
CURRENT = ("hf_docs_sdpa_bert", "hf_docs_sdpa_gpt2", "hf_pr_28802_bert_sdpa")  # others ran code of years ago
_OUTERMOST = 0.02  # of the runs on either side are left out of the band


def record(name: str) -> Any:
    return json.loads((RECORDS / f"{name}.json").read_text("utf-8"))


def memory_runs() -> list[dict[str, Any]]:
    return record("memory")["runs"]


def published_rows() -> list[dict[str, Any]]:
    return record("published")["rows"]


def published_errors() -> dict[str, list[float]]:
    """By source, of the rows that could be rehearsed."""
    errors: dict[str, list[float]] = {}
    for row in published_rows():
        if row["error"] is not None:
            errors.setdefault(row["source"], []).append(row["error"])
    return errors


def error(run: dict[str, Any]) -> float:
    """Below zero: foretold too low."""
    return run["predicted"] / run["measured"] - 1


def errors_of(runs: list[dict[str, Any]]) -> tuple[float, float, float]:
    """Median, lowest, highest."""
    errors = [error(run) for run in runs]
    return statistics.median(errors), min(errors), max(errors)


@dataclass(frozen=True)
class Spread:
    """How far off the runs are."""

    count: int
    median: float
    p95: float
    too_low: int

    @classmethod
    def of(cls, runs: list[dict[str, Any]]) -> Spread:
        sizes = sorted(abs(error(run)) for run in runs)
        too_low = sum(error(run) < -0.02 for run in runs)
        return cls(len(runs), statistics.median(sizes), sizes[int(0.95 * (len(sizes) - 1))], too_low)


def accuracy_file() -> str:
    """Measured over foretold, low and high: on a CPU from our own runs, on a card from tables of today's libraries."""
    cpu = [1 / (1 + error(run)) for run in memory_runs()]
    card = [1 / (1 + each) for source, errors in published_errors().items() if source in CURRENT for each in errors]
    return json.dumps({"cpu": _band(cpu), "cuda": _band(card)}) + "\n"


def _band(ratios: list[float]) -> list[float]:
    ordered = sorted(ratios)
    skip = int(_OUTERMOST * len(ordered))
    return [round(min(ordered[skip], 1.0), 3), round(max(ordered[-1 - skip], 1.0), 3)]
