"""Regret: is the recipe that `plan` chooses the fastest, and are the times it foretells true?

For each case the chosen recipe and the alternatives of the plan are trained, each in a process of its own that waits
at every step for its turn, so all meet the machine in the same mood. The mood changes within minutes, so the machine's
rates are measured before the steps, as on first use, and once more after them. A few steps are not an epoch, and
`bucket` deals out other batches than the others have: each step measured is held against what was foretold for its own
batch (the update, and a pass by its tokens, padding included), and the median of these ratios makes the measured time
of an epoch's usual step.

A plan does not show what takes about as long as the chosen recipe, nor other sizes of its slices: those that come next
in time are measured in the same way, so that nothing faster hides there. Whoever waits for its turn meets cold caches
and libraries that the kernel has dropped: whether times are true is told by the chosen recipe once more, planned and
trained with nobody beside it, its rates measured before, amid and after its steps.

Shapes from ../shared/models with random weights, m3e-small with its own, real reviews. Writes records/regret.json; a
later call goes on where an earlier one stopped.
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
from collections.abc import Iterable, Sequence
from operator import truediv
from pathlib import Path
from typing import Any

from ladder import WARM_UP, Contestant

from own_batches import foretold_of
from promise import reviews
from quality import ROOT, SHARED, weights
from tightfit import Job
from tightfit.device import find_device
from tightfit.planning.candidates import candidates
from tightfit.planning.constraints import Constraints
from tightfit.processes import run_worker
from tightfit.simulation.estimate import WANDERS, accuracy_on
from tightfit.timing.cpu_load import CpuShare
from tightfit.units import parse_bytes

RECORD = ROOT / "records" / "regret.json"
STEPS = {"m3e-small": 20, "rbt3": 10, "bert-base-chinese": 6, "chinese-macbert-large": 4}
LOOKS = 3
NEAR = 3
CPU = find_device("cpu")
CASES = [  # model, budget, alternatives beside the chosen recipe
    ("m3e-small", "720MB", 4),
    ("m3e-small", "1.2GB", 4),
    ("rbt3", "1GB", 5),
    ("rbt3", "2GB", 5),
    ("bert-base-chinese", "1.3GB", 4),
    ("bert-base-chinese", "2GB", 4),
    ("bert-base-chinese", "4GB", 4),
    ("chinese-macbert-large", "4GB", 3),
    ("chinese-macbert-large", "2.5GB", 2),
]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=None, help="begin no case after this; a later call goes on")
    parser.add_argument(
        "--parts", nargs="*", default=["together", "alone", "near"], help="what to measure of each case"
    )
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    given = parser.parse_args()
    measures = {"together": together, "alone": alone, "near": near}
    cases, start = earlier(), time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        data = reviews(Path(name), 1800)
        for model, budget, others in [case for case in CASES if given.only in f"{case[0]} {case[1]}"]:
            for part in given.parts:
                known = cases.setdefault(f"{model} {budget}", {})
                if part in known or (given.minutes is not None and time.monotonic() - start > 60 * given.minutes):
                    continue
                watch = CpuShare()
                known[part] = measures[part](model, budget, others, data, Path(name))
                known[part]["stolen"] = round(watch.stolen, 3)  # of the machine's time, by its host for others
                RECORD.write_text(json.dumps({"cases": in_order(cases)}, indent=1) + "\n", "utf-8")
                print(model, budget, part, json.dumps(known[part]), flush=True)


def earlier() -> dict[str, Any]:
    return json.loads(RECORD.read_text("utf-8"))["cases"] if RECORD.is_file() else {}


def in_order(cases: dict[str, Any]) -> dict[str, Any]:
    """As they stand above, without those that nothing is known of."""
    names = [f"{model} {budget}" for model, budget, _ in CASES]
    return {name: cases[name] for name in names if cases.get(name)}


def together(model: str, budget: str, others: int, data: Path, folder: Path) -> dict[str, Any]:
    """The chosen recipe and the alternatives, step by step in turns."""
    job, about = job_of(model, data, folder)
    plan = planned(about, budget, folder / f"{model} {budget} before")
    options = [plan, *plan["alternatives"][:others]]
    recipes, steps = [option["recipe"] for option in options], STEPS[model]
    running = in_turns(about, recipes, steps, folder / f"{model}-{budget}")
    before, after = [option["seconds_per_step"] for option in options], seconds_now(job, recipes, folder)
    runs = compared(job, running, [option["result"] for option in options], zip(before, after, strict=True), steps)
    return {"steps": steps, "runs": runs, **verdict(runs)}


def near(model: str, budget: str, _: int, data: Path, folder: Path) -> dict[str, Any]:
    """The chosen recipe and those that come next in time, however alike, and do as much to the result."""
    job, about = job_of(model, data, folder)
    plan = planned(about, budget, folder / f"{model} {budget} near")
    recipes, steps = [plan["recipe"], *nearest(job, plan, budget, folder)], STEPS[model]
    running = in_turns(about, recipes, steps, folder / f"{model}-{budget}-near")
    predicted = [[seconds] for seconds in seconds_now(job, recipes, folder)]
    runs = compared(job, running, [plan["result"]] * len(recipes), predicted, steps)
    return {"steps": steps, "runs": runs, "regret": verdict(runs)["regret"]}


def nearest(job: Job, plan: dict[str, Any], budget: str, folder: Path) -> list[list[str]]:
    offered = candidates(CPU, job.batch_size, Constraints(), attention=True, longest=job.max_length)
    others = [r.specs for r in offered if r.result.value == plan["result"] and r.specs != plan["recipe"]]
    fitting = [
        (one["seconds_per_step"], recipe)
        for one, recipe in zip(foretold_now(job, others, folder), others, strict=True)
        if at_most(one["peak_bytes"]) <= parse_bytes(budget)
    ]
    return [recipe for _, recipe in sorted(fitting)[:NEAR]]


def at_most(peak: int) -> float:
    """With the margin that plans have."""
    return peak * accuracy_on(CPU)[1] + WANDERS["cpu"]


def in_turns(about: list[str], recipes: list[list[str]], steps: int, out: Path) -> list[Contestant]:
    running = [
        Contestant(" ".join(recipe), training(about, recipe, steps, out.with_name(f"{out.name}-{i}")))
        for i, recipe in enumerate(recipes)
    ]
    for _ in range(steps + WARM_UP):
        for contestant in running:
            contestant.take_turn()
    return running


def compared(
    job: Job, running: list[Contestant], results: list[str], predicted: Iterable[Sequence[float]], steps: int
) -> list[dict[str, Any]]:
    """What was foretold for each, once or more, beside what it took."""
    weighed = foretold_of(job, [contestant.name.split() for contestant in running], WARM_UP, steps)
    return [
        {
            "result": result,
            "predicted_seconds": statistics.mean(each),
            "foretold_before_and_after": list(each),
            **measured(contestant, *weigh),
        }
        for contestant, result, each, weigh in zip(running, results, predicted, weighed, strict=True)
    ]


def alone(model: str, budget: str, _: int, data: Path, folder: Path) -> dict[str, Any]:
    """The chosen recipe as a user meets it: a plan, then the training."""
    job, about = job_of(model, data, folder)
    plan = planned(about, budget, folder / f"{model} {budget} alone")
    recipe, steps = plan["recipe"], STEPS[model]
    contestant = Contestant(" ".join(recipe), training(about, recipe, steps, folder / f"{model}-{budget}-alone"))
    predicted = [plan["seconds_per_step"]]
    for step in range(steps + WARM_UP):
        contestant.take_turn()
        if step in (steps // 2, steps + WARM_UP - 1):
            predicted += seconds_now(job, [recipe], folder)
    [weighed] = foretold_of(job, [recipe], WARM_UP, steps)
    return {
        "predicted_seconds": statistics.mean(predicted),
        "foretold_before_amid_after": predicted,
        **measured(contestant, *weighed),
    }


def seconds_now(job: Job, recipes: list[list[str]], folder: Path) -> list[float]:
    return [one["seconds_per_step"] for one in foretold_now(job, recipes, folder)]


def foretold_now(job: Job, recipes: list[list[str]], folder: Path) -> list[dict[str, Any]]:
    """With rates measured in this very minute, while every training waits; again if others came between."""
    for _ in range(LOOKS):
        cache = Path(tempfile.mkdtemp(dir=folder))
        os.environ["XDG_CACHE_HOME"] = str(cache)
        found = run_worker({"job": job.model_dump(), "recipes": recipes, "device": "cpu"}).found
        if any(json.loads(file.read_text("utf-8"))["rates"]["note"] is None for file in cache.rglob("rates.json")):
            break
    return [one["predicted"] for one in found]


def job_of(model: str, data: Path, folder: Path) -> tuple[Job, list[str]]:
    shape = SHARED / "models" / model
    job = Job(
        model=str(shape if shape.is_dir() else own_weights(folder)), data=str(data), random_weights=shape.is_dir()
    )
    about = ["--model", job.model, "--data", job.data, "--device", "cpu"]
    return job, [*about, "--random-weights"] if job.random_weights else about


def own_weights(folder: Path) -> Path:
    """Of m3e-small, the only model here that is smaller than the shapes."""
    return found if (found := folder / "m3e-small").is_dir() else weights(folder)


def planned(about: list[str], budget: str, cache: Path) -> dict[str, Any]:
    """With rates measured now, as on first use."""
    os.environ["XDG_CACHE_HOME"] = str(cache)
    command = [sys.executable, "-m", "tightfit", "plan", "--json", "--budget", budget, *about]
    plan: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return plan


def measured(contestant: Contestant, usual: float, met: list[float]) -> dict[str, Any]:
    """The usual step of an epoch, from steps that were foretold to take `met`."""
    return {
        "recipe": contestant.name.split(),
        "seconds_per_step": usual * statistics.median(map(truediv, contestant.steady, met)),
        "seconds": contestant.steady,
        "foretold_for_these": met,
        "peak_bytes": contestant.result()["peak_bytes"],
    }


def training(about: list[str], recipe: list[str], steps: int, out: Path) -> list[str]:
    words = [word for strategy in recipe for word in ("--use", strategy)]
    return ["tightfit", "train", "--json", *about, "--max-steps", str(steps + WARM_UP), "--out", str(out), *words]


def verdict(runs: list[dict[str, Any]]) -> dict[str, float]:
    """The chosen one against the fastest of its kind, and how many pairs are in the foretold order."""
    alike = [run for run in runs if run["result"] == runs[0]["result"]]
    pairs = list(itertools.combinations(runs, 2))
    right = [(a["predicted_seconds"] - b["predicted_seconds"]) * (a["seconds_per_step"] - b["seconds_per_step"]) > 0
             for a, b in pairs]  # fmt: skip
    return {
        "regret": runs[0]["seconds_per_step"] / min(run["seconds_per_step"] for run in alike) - 1,
        "pairs": len(pairs),
        "pairs_in_order": sum(right),
    }


if __name__ == "__main__":
    main()
