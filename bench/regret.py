"""Regret: is the recipe that `plan` chooses the fastest, and are the times it foretells true?

For each case the chosen recipe and the alternatives of the plan are trained, each in a process of its own that waits
at every step for its turn, so all meet the machine in the same mood and the same batch. The mood changes within
minutes, so the machine's rates are measured before the steps, as on first use, and once more after them. Shapes from
../shared/models with random weights, real reviews. Writes records/regret.json; a later call goes on where an earlier
one stopped.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ladder import WARM_UP, Contestant
from promise import reviews
from quality import ROOT, SHARED
from tightfit.ladders.elsewhere import ask

RECORD = ROOT / "records" / "regret.json"
STEPS = 3
CASES = [  # model, budget, alternatives beside the chosen recipe
    ("rbt3", "900MB", 4),
    ("rbt3", "2GB", 4),
    ("bert-base-chinese", "1.3GB", 4),
    ("bert-base-chinese", "2GB", 4),
    ("bert-base-chinese", "4GB", 4),
    ("chinese-macbert-large", "4GB", 2),
    ("chinese-macbert-large", "2.5GB", 1),
]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=None, help="begin no case after this; a later call goes on")
    given = parser.parse_args()
    cases, start = earlier(), time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        data = reviews(Path(name), 1800)
        for model, budget, others in CASES:
            if f"{model} {budget}" in cases:
                continue
            if given.minutes is not None and time.monotonic() - start > 60 * given.minutes:
                break
            cases[f"{model} {budget}"] = case(model, budget, others, data, Path(name))
            RECORD.write_text(json.dumps({"steps": STEPS, "cases": cases}, indent=1) + "\n", "utf-8")
            print(model, budget, json.dumps(cases[f"{model} {budget}"]), flush=True)


def earlier() -> dict[str, Any]:
    return json.loads(RECORD.read_text("utf-8"))["cases"] if RECORD.is_file() else {}


def case(model: str, budget: str, others: int, data: Path, folder: Path) -> dict[str, Any]:
    about = ["--model", str(SHARED / "models" / model), "--data", str(data), "--random-weights", "--device", "cpu"]
    os.environ["XDG_CACHE_HOME"] = str(folder / f"{model} {budget} before")
    command = [sys.executable, "-m", "tightfit", "plan", "--json", "--budget", budget, *about]
    plan = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    options = [plan, *plan["alternatives"][:others]]
    running = [
        Contestant(" ".join(o["recipe"]), training(about, o["recipe"], folder / f"{model}-{budget}-{i}"))
        for i, o in enumerate(options)
    ]
    for _ in range(STEPS + WARM_UP):
        for contestant in running:
            contestant.take_turn()
    os.environ["XDG_CACHE_HOME"] = str(folder / f"{model} {budget} after")
    after = foretold_now(model, data, [option["recipe"] for option in options])
    runs = [
        {
            "recipe": option["recipe"],
            "result": option["result"],
            "foretold_seconds": statistics.mean([option["seconds_per_step"], later]),
            "foretold_before_and_after": [option["seconds_per_step"], later],
            "seconds_per_step": statistics.median(contestant.steady),
            "seconds": contestant.steady,
            "peak_bytes": contestant.result()["peak_bytes"],
        }
        for option, later, contestant in zip(options, after, running, strict=True)
    ]
    return {"runs": runs, **verdict(runs)}


def foretold_now(model: str, data: Path, recipes: list[list[str]]) -> list[float]:
    job = {"model": str(SHARED / "models" / model), "data": str(data), "random_weights": True}
    answer = ask({"job": job, "recipes": recipes, "device": "cpu"})
    return [found["foretold"]["seconds_per_step"] for found in answer.found]


def training(about: list[str], recipe: list[str], out: Path) -> list[str]:
    words = [word for strategy in recipe for word in ("--use", strategy)]
    return ["tightfit", "train", "--json", *about, "--max-steps", str(STEPS + WARM_UP), "--out", str(out), *words]


def verdict(runs: list[dict[str, Any]]) -> dict[str, float]:
    """The chosen one against the fastest of its kind, and how many pairs are in the foretold order."""
    alike = [run for run in runs if run["result"] == runs[0]["result"]]
    pairs = list(itertools.combinations(runs, 2))
    right = [(a["foretold_seconds"] - b["foretold_seconds"]) * (a["seconds_per_step"] - b["seconds_per_step"]) > 0
             for a, b in pairs]  # fmt: skip
    return {
        "regret": runs[0]["seconds_per_step"] / min(run["seconds_per_step"] for run in alike) - 1,
        "pairs": len(pairs),
        "pairs_in_order": sum(right),
    }


if __name__ == "__main__":
    main()
