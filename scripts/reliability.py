"""The page on reliability, from what `make stress` wrote down."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

RECORD = Path(__file__).resolve().parent.parent / "records" / "reliability.json"
Table = Callable[[tuple[str, ...], list[tuple[str, ...]]], str]

HEAD = """# Reliability: what was done to runs, and what became of them

Made by `make stress` (records/reliability.json) and `make docs`. The trainings are tiny, on a CPU; what happens to
them is real: processes are killed with SIGKILL, the kernel refuses memory, a file system is full. Only the errors of
the second line are raised by hand, since each has to come at a chosen place; the third line has real ones.

"""
WHAT = {
    "kills": "runs killed with SIGKILL, once to three times each, and resumed: weights and losses the same bits",
    "hunger": "out-of-memory errors put in, dropout off: same steps and batches, losses equal to rounding, a line said",
    "limits": "runs under a hard memory limit below what their recipe needs, ended by shrinking",
    "disk": "disks filled up in the middle of a run: last checkpoint whole, one sentence, resumed to the same bits",
    "inputs": "bad inputs: one sentence and exit code 2, nothing written; or a damaged checkpoint passed over",
    "fuzz": "mutated CSV, TSV, JSON and YAML files: read, or refused in one sentence",
}


def page(table: Table) -> str:
    record = json.loads(RECORD.read_text("utf-8"))
    rows = [(what, f"{record[part]['passed']:,} of {record[part]['of']:,}") for part, what in WHAT.items()]
    installed = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    minutes = sum(record[part]["seconds"] for part in WHAT) / 60
    below = f"\n{minutes:.0f} minutes in all, with {installed}.\n"
    parts = [_kills, _hunger, _limits, _disk, _inputs, _fuzz]
    return HEAD + table(("", "as it has to be"), rows) + below + "".join(part(record, table) for part in parts)


def _kills(record: dict[str, Any], table: Table) -> str:
    runs = record["kills"]["results"]
    phases = Counter(_moment(phase) for run in runs for phase in run["killed"])
    rows = [(phase, str(count)) for phase, count in phases.most_common()]
    recipes = ", ".join(sorted({run["recipe"] for run in runs}))
    return (
        f"\n## Killed\n\n{sum(phases.values())} kills of {len(runs)} runs (recipes: {recipes}), dropout on, "
        "a checkpoint every 3 steps. What the process was doing:\n\n" + table(("when it was killed", "kills"), rows)
    )


def _moment(text: str) -> str:
    return "training, after a checkpoint" if text.startswith("training") else text


def _hunger(record: dict[str, Any], table: Table) -> str:
    results = record["hunger"]["results"]
    steps = ("first", "middle", "last")
    rows = []
    for place in dict.fromkeys(result["place"] for result in results):
        here = [result for result in results if result["place"] == place]
        passed = [sum(r["passed"] for r in here if r["when"] == when) for when in steps]
        cells = [
            f"{count} of {sum(r['when'] == when for r in here)}" for count, when in zip(passed, steps, strict=True)
        ]
        rows.append((place, *cells, f"{max(r['difference'] for r in here):.1e}"))
    errors = ", ".join(dict.fromkeys(result["error"] for result in results))
    half_done = sum("half done" in line for result in results for line in result["said"])
    recipes = ", ".join(dict.fromkeys(result["recipe"] for result in results))
    return (
        f"\n## Out of memory\n\nEach place and step with each error: {errors}; recipes take turns: {recipes}. "
        "Dropout is off: with it the same random numbers go to other rows, and losses are no longer the same. "
        f"In {half_done} of them weights had already been stepped, and the run went back to its last checkpoint. "
        "For example:\n\n"
        f"> {next(line for result in results for line in result['said'])}\n\n"
        + table(("where", *(f"{when} step" for when in steps), "largest relative difference of a loss"), rows)
    )


def _limits(record: dict[str, Any], table: Table) -> str:
    rows = [
        (run["recipe"], f"{run['needed'] / 2**20:,.0f} MiB", f"{run['allowed'] / 2**20:,.0f} MiB", str(run["shrunk"]))
        for run in record["limits"]["results"]
    ]
    return "\n## Less memory than needed\n\n" + table(("recipe", "needs", "was allowed", "times halved"), rows)


def _disk(record: dict[str, Any], table: Table) -> str:
    rows = [(run["way"], run["disk"], str(run["ended"]), run["said"]) for run in record["disk"]["results"]]
    return "\n## Full disk\n\n" + table(("", "disk", "exit code", "what was said"), rows)


def _inputs(record: dict[str, Any], table: Table) -> str:
    groups: dict[str, list[str]] = {}
    for result in record["inputs"]["results"]:
        kind, _, name = result["input"].partition(": ")
        groups.setdefault(kind, []).append(name if result["passed"] else f"**{name} (failed)**")
    rows = [(kind, str(len(names)), ", ".join(names)) for kind, names in groups.items()]
    return "\n## Bad inputs\n\n" + table(("", "inputs", ""), rows)


def _fuzz(record: dict[str, Any], table: Table) -> str:
    (found,) = record["fuzz"]["results"]
    rows = [(f"{found['read']:,}", f"{found['refused']:,}", str(len(found["unhandled"])))]
    return "\n## Fuzz\n\n" + table(("read", "refused in a sentence", "unhandled"), rows)
