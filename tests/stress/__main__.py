"""`make test-stress`: the whole suite in about fifteen minutes, written to records/reliability.json.

`python -m stress kills fuzz` runs only those parts and keeps the recorded results of the others.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stress.allocations import Allocations
from stress.bad_inputs import BadInputs
from stress.disk import FAULTS, FullDisk
from stress.fixtures import NO_DROPOUT, Workspace
from stress.fuzz import Fuzz
from stress.kills import Kills
from stress.limits import RECIPES, MemoryLimits
from stress.low_memory import MemoryErrors, cases

from tightfit.runs.record import versions

RECORD = Path(__file__).resolve().parents[2] / "records" / "reliability.json"
KILLED_RUNS, FUZZED_FILES = 50, 5000


def main() -> int:
    chosen = sys.argv[1:] or list(PARTS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.chdir(folder)
        os.environ["HF_DATASETS_CACHE"] = str(folder / "rows")
        results = {part: _timed(part, folder) for part in chosen}
    return 0 if all(result["passed"] == result["of"] for result in results.values()) else 1


def _write(part: str, result: dict[str, Any]) -> None:
    record = json.loads(RECORD.read_text("utf-8")) if RECORD.is_file() else {}
    record.update({part: result, "versions": versions()})
    RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")


def _timed(part: str, folder: Path) -> dict[str, Any]:
    start, results = time.perf_counter(), []
    for number, result in enumerate(PARTS[part](folder / part), 1):
        results.append(result)
        _log(f"{part} {number}: {'passed' if result['passed'] else f'FAILED {result}'}")
    counts = {"passed": sum(result.get("count", 1) * result["passed"] for result in results)}
    counts["of"] = sum(result.get("count", 1) for result in results)
    summary = {**counts, "seconds": round(time.perf_counter() - start), "results": results}
    _write(part, summary)
    return summary


def _kills(folder: Path) -> Iterator[dict[str, Any]]:
    kills = Kills(Workspace(folder))
    kills.workspace.train("warm", max_steps=1)  # so that children start with all libraries loaded
    return (kills.run_case(number) for number in range(KILLED_RUNS))


def _memory_errors(folder: Path) -> Iterator[dict[str, Any]]:
    memory_errors = MemoryErrors(Workspace(folder, **NO_DROPOUT))
    return (memory_errors.run_case(case) for case in cases())


def _allocations(folder: Path) -> Iterator[dict[str, Any]]:
    allocations = Allocations(Workspace(folder, **NO_DROPOUT))
    for recipe, step, every in (("micro-batches", 0, 1), ("chunked layers", 1, 10), ("optimizer in backward", 1, 10)):
        for fail_at in range(1, allocations.count(recipe, step) + 1, every):
            yield allocations.run_case(recipe, step, fail_at)


def _memory_limits(folder: Path) -> Iterator[dict[str, Any]]:
    limits = MemoryLimits(folder)
    return (limits.run_case(recipe) for recipe in RECIPES)


def _disk(folder: Path) -> Iterator[dict[str, Any]]:
    disk = FullDisk(folder)
    return (disk.run_case(fault) for fault in FAULTS)


def _bad_inputs(folder: Path) -> Iterator[dict[str, Any]]:
    inputs = BadInputs(Workspace(folder))
    return ({"input": name, "passed": check()} for name, check in inputs.cases().items())


def _fuzz(folder: Path) -> Iterator[dict[str, Any]]:
    workspace = Workspace(folder)
    workspace.train("run")
    record, manifest = (folder / "run" / file for file in ("run.json", "checkpoint-14/manifest.json"))
    found = Fuzz(folder / "fuzz", record.read_text("utf-8"), manifest.read_text("utf-8")).run(FUZZED_FILES)
    yield {**found, "count": FUZZED_FILES, "passed": not found["unhandled"]}


PARTS: dict[str, Callable[[Path], Iterator[dict[str, Any]]]] = {
    "memory_errors": _memory_errors,
    "allocations": _allocations,
    "memory_limits": _memory_limits,
    "disk": _disk,
    "bad_inputs": _bad_inputs,
    "fuzz": _fuzz,
    "kills": _kills,
}


def _log(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
