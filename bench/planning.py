"""How long planning takes: BERT-Large in fresh processes, then for other budgets in one process.

The shape of macbert-large and the data file of the tutorials. "First use" includes the calibration of the machine;
later runs find it cached. The other budgets go from large to small; in the smallest only last resorts fit, which are
simulated when they are first needed. Needs ../shared. Writes records/planning.json.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

from quality import ROOT, SHARED
from tightfit import DoesNotFit, Job, plan
from tightfit.timing.cpu_load import CpuShare

RECORD = ROOT / "records" / "planning.json"
MODEL, DATA = SHARED / "models" / "chinese-macbert-large", SHARED / "data" / "ChnSentiCorp_htl_all.csv"
BUDGET, REPEATS = "4GB", 5
OTHER_BUDGETS = ("16GB", "8GB", "6GB", "5GB", "3.5GB", "3GB", "2.6GB", "2.4GB", "2GB")


def main() -> None:
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        first, *later = [plan_in_fresh_process() for _ in range(1 + REPEATS)]
        record = {"budget": BUDGET, "first_use": first, "fresh_process": later, "other_budgets": plan_in_one_process()}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    print(json.dumps(record, indent=1))


def plan_in_fresh_process() -> dict[str, float]:
    command = [sys.executable, "-m", "tightfit", "plan", "--json", "--random-weights", "--device", "cpu"]
    command += ["--model", str(MODEL), "--data", str(DATA), "--budget", BUDGET]
    load, start = CpuShare(), time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return {"seconds": round(time.perf_counter() - start, 2), "steal": round(load.steal, 3)}


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
