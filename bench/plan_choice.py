"""Whether the recipe that `plan` chooses is the fastest that fits, and how good its predicted time is.

interleaved: the chosen recipe and the plan's alternatives are trained, each in its own process, with their steps in
turns, so that a change in the machine's speed affects all of them alike. The speed changes within minutes, so the
machine is calibrated before the steps, as on first use, and again after them. A few steps are not an epoch, and
`length-bucketing` makes other batches: each measured step is compared with the prediction for its own batch (the
update, and forward and backward by its tokens, padding included), and the median of these ratios gives the measured
time of the mean step of an epoch.

neighbours: a plan does not list recipes that take about as long as the chosen one, nor other micro-batch sizes. Those
that come next in predicted time are measured in the same way, in case one of them is faster.

alone: a process that waits for its turn finds cold caches, and libraries that the kernel has evicted. So the predicted
time is checked with the chosen recipe planned and trained alone, with a calibration before, during and after its steps.

Shapes from ../shared/models with random weights, m3e-small with its own, real reviews. Writes
records/plan_choice.json; the next call continues where the last one stopped.
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

from comparison import WARM_UP, GatedRun
from hard_limit import reviews
from predicted_steps import predicted_steps
from quality import ROOT, SHARED, weights
from tightfit import Job
from tightfit.comparison.measure import predict_recipes
from tightfit.device import find_device
from tightfit.optional_imports import slim_process
from tightfit.planning.candidates import candidates
from tightfit.planning.constraints import Constraints
from tightfit.simulation.error_margin import PROCESS_NOISE, accuracy_on
from tightfit.strategies.base import Case, Stage
from tightfit.system.processes import Worker
from tightfit.timing.cpu_load import CpuShare
from tightfit.units import parse_bytes

RECORD = ROOT / "records" / "plan_choice.json"
STEPS = {"m3e-small": 20, "rbt3": 10, "bert-base-chinese": 6, "chinese-macbert-large": 4}
CALIBRATIONS = 3
NEIGHBOURS = 3
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
    parser.add_argument(
        "--minutes", type=float, default=None, help="start no case after this time; the next call continues"
    )
    parser.add_argument("--parts", nargs="*", default=list(PARTS), help="what to measure in each case")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    given = parser.parse_args()
    cases, start = recorded_cases(), time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        data = reviews(Path(name), 1800)
        for model, budget, alternatives in [case for case in CASES if given.only in f"{case[0]} {case[1]}"]:
            for part in given.parts:
                known = cases.setdefault(f"{model} {budget}", {})
                if part in known or (given.minutes is not None and time.monotonic() - start > 60 * given.minutes):
                    continue
                load = CpuShare()
                known[part] = PARTS[part](model, budget, alternatives, data, Path(name))
                known[part]["steal"] = round(load.steal, 3)  # share of CPU time, as in comparison.py
                RECORD.write_text(json.dumps({"cases": in_case_order(cases)}, indent=1) + "\n", "utf-8")
                print(model, budget, part, json.dumps(known[part]), flush=True)


def recorded_cases() -> dict[str, Any]:
    return json.loads(RECORD.read_text("utf-8"))["cases"] if RECORD.is_file() else {}


def in_case_order(cases: dict[str, Any]) -> dict[str, Any]:
    """In the order of CASES, without those that have no measurement."""
    names = [f"{model} {budget}" for model, budget, _ in CASES]
    return {name: cases[name] for name in names if cases.get(name)}


def interleaved(model: str, budget: str, alternatives: int, data: Path, folder: Path) -> dict[str, Any]:
    """The chosen recipe and its alternatives, with their steps in turns."""
    job, options = job_of(model, data, folder)
    plan = run_plan(options, budget, folder / f"{model} {budget} before")
    found = [plan, *plan["alternatives"][:alternatives]]
    recipes, steps = [one["recipe"] for one in found], STEPS[model]
    runs = run_in_turns(options, recipes, steps, folder / f"{model}-{budget}")
    before, after = [one["seconds_per_step"] for one in found], predict_seconds(job, recipes, folder)
    rows = compared(job, runs, [one["result"] for one in found], zip(before, after, strict=True), steps)
    return {"steps": steps, "runs": rows, **verdict(rows)}


def neighbours(model: str, budget: str, _: int, data: Path, folder: Path) -> dict[str, Any]:
    """The chosen recipe and those next in predicted time with the same effect on the result."""
    job, options = job_of(model, data, folder)
    plan = run_plan(options, budget, folder / f"{model} {budget} neighbours")
    recipes, steps = [plan["recipe"], *nearest(job, plan, budget, folder)], STEPS[model]
    runs = run_in_turns(options, recipes, steps, folder / f"{model}-{budget}-neighbours")
    predicted = [[seconds] for seconds in predict_seconds(job, recipes, folder)]
    rows = compared(job, runs, [plan["result"]] * len(recipes), predicted, steps)
    return {"steps": steps, "runs": rows, "slower_by": verdict(rows)["slower_by"]}


def nearest(job: Job, plan: dict[str, Any], budget: str, folder: Path) -> list[list[str]]:
    possible = candidates(Case(CPU, job.batch_size, job.max_length, None, Stage.USUAL), Constraints())
    others = [r.specs for r in possible if r.result.value == plan["result"] and r.specs != plan["recipe"]]
    fitting = [
        (one["seconds_per_step"], recipe)
        for one, recipe in zip(predict_now(job, others, folder), others, strict=True)
        if upper_bound(one["peak_bytes"]) <= parse_bytes(budget)
    ]
    return [recipe for _, recipe in sorted(fitting)[:NEIGHBOURS]]


def upper_bound(peak: int) -> float:
    """The peak with the margin that plans use."""
    return peak * accuracy_on(CPU)[1] + PROCESS_NOISE["cpu"]


def run_in_turns(options: list[str], recipes: list[list[str]], steps: int, out: Path) -> list[GatedRun]:
    runs = [
        GatedRun(" ".join(recipe), train_command(options, recipe, steps, out.with_name(f"{out.name}-{i}")))
        for i, recipe in enumerate(recipes)
    ]
    for _ in range(steps + WARM_UP):
        for run in runs:
            run.run_step()
    return runs


def compared(
    job: Job, runs: list[GatedRun], results: list[str], predicted: Iterable[Sequence[float]], steps: int
) -> list[dict[str, Any]]:
    """For each run the predictions, one per calibration, beside the measured time."""
    each_step = predicted_steps(job, [run.name.split() for run in runs], WARM_UP, steps)
    return [
        {
            "result": result,
            "predicted_seconds": statistics.mean(each),
            "predicted_before_and_after": list(each),
            **measured(run, *own),
        }
        for run, result, each, own in zip(runs, results, predicted, each_step, strict=True)
    ]


def alone(model: str, budget: str, _: int, data: Path, folder: Path) -> dict[str, Any]:
    """The chosen recipe as users run it: plan, then train."""
    job, options = job_of(model, data, folder)
    plan = run_plan(options, budget, folder / f"{model} {budget} alone")
    recipe, steps = plan["recipe"], STEPS[model]
    run = GatedRun(" ".join(recipe), train_command(options, recipe, steps, folder / f"{model}-{budget}-alone"))
    predicted = [plan["seconds_per_step"]]
    for step in range(steps + WARM_UP):
        run.run_step()
        if step in (steps // 2, steps + WARM_UP - 1):
            predicted += predict_seconds(job, [recipe], folder)
    [own] = predicted_steps(job, [recipe], WARM_UP, steps)
    return {
        "predicted_seconds": statistics.mean(predicted),
        "predicted_before_during_after": predicted,
        **measured(run, *own),
    }


def predict_seconds(job: Job, recipes: list[list[str]], folder: Path) -> list[float]:
    return [one["seconds_per_step"] for one in predict_now(job, recipes, folder)]


def predict_now(job: Job, recipes: list[list[str]], folder: Path) -> list[dict[str, Any]]:
    """Predictions with a calibration made now, while all training runs wait; repeated if the machine was busy."""
    for _ in range(CALIBRATIONS):
        cache = Path(tempfile.mkdtemp(dir=folder))
        os.environ["XDG_CACHE_HOME"] = str(cache)
        with Worker(slim_process) as worker:
            found = worker.call(predict_recipes, job, recipes, "cpu")
        if any(json.loads(file.read_text("utf-8"))["rates"]["warning"] is None for file in cache.rglob("rates.json")):
            break
    return [predicted.model_dump() for predicted, _ in found]


def job_of(model: str, data: Path, folder: Path) -> tuple[Job, list[str]]:
    shape = SHARED / "models" / model
    job = Job(model=str(shape if shape.is_dir() else m3e_small(folder)), data=str(data), random_weights=shape.is_dir())
    options = ["--model", job.model, "--data", job.data, "--device", "cpu"]
    return job, [*options, "--random-weights"] if job.random_weights else options


def m3e_small(folder: Path) -> Path:
    """The folder of m3e-small, which is smaller than the models in ../shared/models."""
    return folder / "m3e-small" if (folder / "m3e-small").is_dir() else weights(folder)


def run_plan(options: list[str], budget: str, cache: Path) -> dict[str, Any]:
    """A plan with a new calibration, as on first use."""
    os.environ["XDG_CACHE_HOME"] = str(cache)
    command = [sys.executable, "-m", "tightfit", "plan", "--json", "--budget", budget, *options]
    plan: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return plan


def measured(run: GatedRun, mean: float, each: list[float]) -> dict[str, Any]:
    """The mean step of an epoch, from the measured steps and the predictions for them."""
    return {
        "recipe": run.name.split(),
        "seconds_per_step": mean * statistics.median(map(truediv, run.steady_seconds, each)),
        "seconds": run.steady_seconds,
        "predicted_for_these_steps": each,
        "peak_bytes": run.result()["peak_bytes"],
    }


def train_command(options: list[str], recipe: list[str], steps: int, out: Path) -> list[str]:
    use = [part for spec in recipe for part in ("--use", spec)]
    return ["tightfit", "train", "--json", *options, "--max-steps", str(steps + WARM_UP), "--out", str(out), *use]


def verdict(runs: list[dict[str, Any]]) -> dict[str, float]:
    """The chosen recipe against the fastest with the same effect on the result, and the pairs in predicted order."""
    same_effect = [run for run in runs if run["result"] == runs[0]["result"]]
    pairs = list(itertools.combinations(runs, 2))
    right = [(a["predicted_seconds"] - b["predicted_seconds"]) * (a["seconds_per_step"] - b["seconds_per_step"]) > 0
             for a, b in pairs]  # fmt: skip
    return {
        "slower_by": runs[0]["seconds_per_step"] / min(run["seconds_per_step"] for run in same_effect) - 1,
        "pairs": len(pairs),
        "pairs_in_order": sum(right),
    }


PARTS = {"interleaved": interleaved, "alone": alone, "neighbours": neighbours}

if __name__ == "__main__":
    main()
