"""Scripts of `tightfit plan --export` in a memory cgroup limited to the budget in their docstring.

Three plans whose recipe plain transformers can train, and three that need tightfit; each budget is 1.1 times what the
script is predicted to need. Small models with random weights, real reviews; steps, evaluation and saving. Writes
records/exported_scripts.json.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from hard_limit import limit_kind, limiter, reviews
from quality import ROOT
from tight_budget import BATCH, ROWS, STEPS, group_of, recorded, saved_model, smallest_plan, tightfit
from tightfit import DoesNotFit, Job, plan
from tightfit.planning.export import NOT_EXPORTABLE, script_of
from tightfit.strategies.recipe import Recipe

RECORD = ROOT / "records" / "exported_scripts.json"
FACTOR = 1.1
PLAIN = {
    "minilm": ["micro-batch:size=4"],
    "distilbert": ["micro-batch:size=4", "gradient-checkpointing", "adafactor"],
    "electra-small": ["micro-batch:size=2", "gradient-checkpointing"],
}
WITH_TIGHTFIT = ("minilm", "bert-24-narrow-layers", "roberta")


def main() -> None:
    assert limit_kind() == "cgroup", "needs root and a memory cgroup"
    record: dict[str, Any] = json.loads(RECORD.read_text("utf-8")) if RECORD.is_file() else {"runs": {}}
    cases: list[tuple[str, list[str] | None]] = list(PLAIN.items()) + [(model, None) for model in WITH_TIGHTFIT]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = reviews(folder / "data", ROWS)
        for model, use in cases:
            case = f"{model} {'plain' if use else 'tightfit'}"
            if case not in record["runs"]:
                record["runs"][case] = measure(saved_model(model, folder), data, use, folder / case.replace(" ", "-"))
                RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
                print(case, record["runs"][case], flush=True)


def measure(model: Path, data: Path, use: list[str] | None, folder: Path) -> dict[str, Any]:
    folder.mkdir()
    job = ["--model", model, "--data", data, "--max-steps", STEPS, "--batch-size", BATCH]
    options = [] if use is None else [*(f"--use={spec}" for spec in use), *(f"--avoid={n}" for n in NOT_EXPORTABLE)]
    budget, script = budget_for(model, data, use, job), folder / "train.py"
    done = tightfit("plan", job, *options, "--budget", f"{budget}B", "--export", script)
    found = json.loads(done.stdout)
    assert found["fits"], done.stderr
    plain = "tightfit" not in script.read_text("utf-8").split('"""')[2]
    assert plain == (use is not None), done.stderr
    return {"recipe": found["recipe"], "is_plain": plain, "budget_bytes": budget, **run(script, budget)}


def budget_for(model: Path, data: Path, use: list[str] | None, job: list[Any]) -> int:
    """Just above what the script needs: for tightfit the smallest recipe of all, else the given one."""
    if use is None:
        known = recorded()["smallest"].get(model.name)  # the same job
        return int(FACTOR * (known or smallest_plan(job))["peak_bytes"])
    given = Job(model=str(model), data=str(data), max_steps=STEPS, batch_size=BATCH, random_weights=True)
    try:
        made = plan(given, "8GB", device="cpu", use=use, avoid=NOT_EXPORTABLE)
    except DoesNotFit as error:
        raise AssertionError(error) from None
    assert made.recipe == Recipe.parse(use)
    return int(FACTOR * script_of(made).estimate.peak)


def run(script: Path, budget: int) -> dict[str, Any]:
    name, start = f"script-{budget}", time.monotonic()
    with (script.parent / "log").open("w") as log:
        limit = limiter(budget, name)
        process = subprocess.Popen(
            [sys.executable, str(script)], cwd=script.parent, stdout=log, stderr=log, preexec_fn=limit
        )
        peak = 0
        while process.poll() is None:
            peak = max(peak, resident_peak(process.pid))
            time.sleep(0.1)
    result: dict[str, Any] = {
        "exit": process.returncode,
        "seconds": round(time.monotonic() - start, 1),
        "peak_bytes": peak,
        "cgroup_peak_bytes": int((group_of(name) / "memory.max_usage_in_bytes").read_text()),
        "docstring": script.read_text("utf-8").split('"""')[1].strip().splitlines()[2:],
    }
    if process.returncode:
        result["error"] = (script.parent / "log").read_text().strip().splitlines()[-1:]
    group_of(name).rmdir()
    return result


def resident_peak(process: int) -> int:
    """The high-water mark of its resident memory; 0 once it has ended."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), 0)


if __name__ == "__main__":
    main()
