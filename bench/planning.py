"""How long planning takes: BERT-Large in fresh processes, then for other budgets in one process; models by text length.

The shape of macbert-large and the data file of the tutorials. "First use" includes the calibration of the machine;
later runs find it cached. The other budgets go from large to small; in the smallest only last resorts fit, which are
simulated when they are first needed. Three models are planned at nine maximum lengths, each in a fresh process; the
budget is one in which all fit, so that every plan simulates the same recipes. Needs ../shared. Writes
records/planning.json; with `--lengths` only the part about lengths.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import memory

from quality import ROOT, SHARED
from tightfit import DoesNotFit, Job, plan
from tightfit.timing.cpu_load import CpuShare

RECORD = ROOT / "records" / "planning.json"
MODEL, DATA = SHARED / "models" / "chinese-macbert-large", SHARED / "data" / "ChnSentiCorp_htl_all.csv"
BUDGET, REPEATS = "4GB", 5
LENGTHS, ENOUGH = (32, 48, 64, 96, 128, 192, 256, 384, 512), "64GB"
BY_LENGTH = ("minilm", "bert-base-chinese", "chinese-macbert-large")
OTHER_BUDGETS = ("16GB", "8GB", "6GB", "5GB", "3.5GB", "3GB", "2.6GB", "2.4GB", "2GB")


def main() -> None:
    record = json.loads(RECORD.read_text("utf-8")) if RECORD.is_file() else {}
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        if "--lengths" not in sys.argv:
            first, *later = [plan_in_fresh_process(MODEL, BUDGET) for _ in range(1 + REPEATS)]
            record = {"budget": BUDGET, "first_use": first, "fresh_process": later}
            record["other_budgets"] = plan_in_one_process()
        record["lengths"] = {name: plan_at_lengths(memory.model(name, Path(cache))) for name in BY_LENGTH}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    print(json.dumps(record, indent=1))


def plan_at_lengths(model: Path) -> dict[int, dict[str, float]]:
    plan_in_fresh_process(model, ENOUGH)  # calibrates the machine
    return {length: plan_in_fresh_process(model, ENOUGH, "--max-length", str(length)) for length in LENGTHS}


def plan_in_fresh_process(model: Path, budget: str, *options: str) -> dict[str, float]:
    command = [sys.executable, "-m", "tightfit", "plan", "--json", "--random-weights", "--device", "cpu"]
    command += ["--model", str(model), "--data", str(DATA), "--budget", budget, *options]
    load, start, cpu = CpuShare(), time.perf_counter(), cpu_seconds()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    seconds, cpu = round(time.perf_counter() - start, 2), round(cpu_seconds() - cpu, 2)
    return {"seconds": seconds, "cpu_seconds": cpu, "steal": round(load.steal, 3)}


def cpu_seconds() -> float:
    """Of all processes that have ended, those that they forked included."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def plan_in_one_process() -> dict[str, Any]:
    job = Job(model=str(MODEL), data=str(DATA), random_weights=True)
    plan(job, BUDGET, device="cpu")
    return {budget: time_plan(job, budget) for budget in OTHER_BUDGETS}


def time_plan(job: Job, budget: str) -> dict[str, Any]:
    start = time.perf_counter()
    try:
        made = plan(job, budget, device="cpu")
    except DoesNotFit as error:
        made = error.plan
    return {"seconds": round(time.perf_counter() - start, 3), "fits": made.fits, "recipe": made.recipe.specs}


if __name__ == "__main__":
    main()
