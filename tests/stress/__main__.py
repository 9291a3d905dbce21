"""`make stress`: all of it, in some fifteen minutes. Writes records/reliability.json, which `make docs` shows.

`python -m stress kills fuzz` does those parts again and leaves what is written of the others.
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

from stress.bad_inputs import Inputs
from stress.disk import WAYS, Disk
from stress.fixtures import NO_DROPOUT, Ground
from stress.fuzz import Fuzz
from stress.kills import Kills
from stress.limits import RECIPES, Limits
from stress.low_memory import Hunger, cases

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
        _say(f"{part} {number}: {'passed' if result['passed'] else f'FAILED {result}'}")
    counts = {"passed": sum(result.get("count", 1) * result["passed"] for result in results)}
    counts["of"] = sum(result.get("count", 1) for result in results)
    whole = {**counts, "seconds": round(time.perf_counter() - start), "results": results}
    _write(part, whole)
    return whole


def _kills(folder: Path) -> Iterator[dict[str, Any]]:
    kills = Kills(Ground(folder))
    kills.ground.train("warm", max_steps=1)  # children begin with everything loaded
    return (kills.suffer(number) for number in range(KILLED_RUNS))


def _hunger(folder: Path) -> Iterator[dict[str, Any]]:
    hunger = Hunger(Ground(folder, **NO_DROPOUT))
    return (hunger.suffer(case) for case in cases())


def _limits(folder: Path) -> Iterator[dict[str, Any]]:
    limits = Limits(folder)
    return (limits.suffer(recipe) for recipe in RECIPES)


def _disk(folder: Path) -> Iterator[dict[str, Any]]:
    disk = Disk(folder)
    return (disk.suffer(way) for way in WAYS)


def _inputs(folder: Path) -> Iterator[dict[str, Any]]:
    inputs = Inputs(Ground(folder))
    return ({"input": name, "passed": check()} for name, check in inputs.cases().items())


def _fuzz(folder: Path) -> Iterator[dict[str, Any]]:
    ground = Ground(folder)
    ground.train("run")
    record, about = (folder / "run" / file for file in ("run.json", "checkpoint-14/tightfit.json"))
    found = Fuzz(folder / "fuzz", record.read_text("utf-8"), about.read_text("utf-8")).suffer(FUZZED_FILES)
    yield {**found, "count": FUZZED_FILES, "passed": not found["unhandled"]}


PARTS: dict[str, Callable[[Path], Iterator[dict[str, Any]]]] = {
    "hunger": _hunger,
    "limits": _limits,
    "disk": _disk,
    "inputs": _inputs,
    "fuzz": _fuzz,
    "kills": _kills,
}


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
