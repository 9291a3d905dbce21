"""How long `plan` takes: BERT-Large in fresh processes, then for other budgets in one.

Shape of macbert-large, the tutorials' own file. "First use" measures the machine's rates, too; the others find them
kept. Other budgets are asked for from large to small, the smallest ones where only last resorts fit: these are played
when they are first needed. Needs ../shared. Writes records/planning.json.
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
BUDGET, TIMES = "4GB", 5
OTHERS = ("16GB", "8GB", "6GB", "5GB", "3.5GB", "3GB", "2.6GB", "2.4GB", "2GB")


def main() -> None:
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        first, *cold = [in_a_fresh_process() for _ in range(1 + TIMES)]
        record = {"budget": BUDGET, "first_use": first, "cold": cold, "others": in_this_one()}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    print(json.dumps(record, indent=1))


def in_a_fresh_process() -> dict[str, float]:
    command = [sys.executable, "-m", "tightfit", "plan", "--json", "--random-weights", "--device", "cpu"]
    command += ["--model", str(MODEL), "--data", str(DATA), "--budget", BUDGET]
    watch, start = CpuShare(), time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return {"seconds": round(time.perf_counter() - start, 2), "stolen": round(watch.stolen, 3)}


def in_this_one() -> dict[str, Any]:
    job = Job(model=str(MODEL), data=str(DATA), random_weights=True)
    plan(job, BUDGET, device="cpu")
    return {budget: again(job, budget) for budget in OTHERS}


def again(job: Job, budget: str) -> dict[str, Any]:
    start = time.perf_counter()
    try:
        made = plan(job, budget, device="cpu")
    except DoesNotFit as error:
        made = error.plan
    return {"seconds": round(time.perf_counter() - start, 3), "fits": made.fits, "recipe": made.recipe.specs}


if __name__ == "__main__":
    main()
