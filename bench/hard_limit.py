"""Training runs under a hard memory limit of exactly the budget they were planned for.

Every run is `tightfit train --budget`, with steps, evaluation and saving, in its own memory cgroup whose limit is the
budget: the kernel kills a process that takes more. Where no cgroup can be written, the limit is RLIMIT_DATA. Shapes
from ../shared/models with random weights, real reviews. Writes records/hard_limit.json; the next call continues where
the last one stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from quality import ROOT, SHARED
from tightfit.messages import from_data
from tightfit.units import parse_bytes

RECORD = ROOT / "records" / "hard_limit.json"
CGROUPS = Path("/sys/fs/cgroup/memory")
RECORD_LOCK = threading.Lock()
ROWS, FEWER_ROWS = 320, 160  # a whole epoch of them is trained
SMALL = ("rbt3", "distilbert-base-uncased")  # steps of the others take a minute or more on one core
RECOVERIES = ("planned again", "out of memory")  # in notes: a run with a wrong plan finished all the same
CASES: dict[str, tuple[str, ...]] = {
    "rbt3": ("840MB", "900MB", "1GB", "1.2GB", "1.5GB", "2GB"),
    "distilbert-base-uncased": ("1GB", "1.2GB", "1.5GB", "2GB", "3GB"),
    "bert-base-chinese": ("1.2GB", "1.3GB", "1.5GB", "2GB", "2.5GB", "3GB", "5GB"),
    "t5-small": ("1GB", "1.2GB", "1.5GB", "2GB"),
    "gpt2": ("1.3GB", "2GB", "3GB"),
    "deberta-v3-base": ("1.8GB", "2.5GB", "4GB"),
    "chinese-macbert-large": ("2.4GB", "4GB", "6GB"),
    "bert-large-uncased": ("3GB",),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--minutes", type=float, default=None, help="start no run after this time; the next call continues"
    )
    parser.add_argument("--parallel", type=int, default=1, help="runs at the same time, which share the cores")
    given = parser.parse_args()
    runs, start = recorded_runs(), time.monotonic()
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(given.parallel) as pool:
        many, few = (reviews(Path(name) / str(rows), rows) for rows in (ROWS, FEWER_ROWS))

        def run_case(case: tuple[str, str]) -> None:
            model, budget = case
            if given.minutes is None or time.monotonic() - start < 60 * given.minutes:
                found = run(model, budget, many if model in SMALL else few, Path(name), given.parallel)
                with RECORD_LOCK:
                    runs[f"{model} {budget}"] = found
                    RECORD.write_text(
                        json.dumps({"limit": limit_kind(), "runs": in_case_order(runs)}, indent=1) + "\n", "utf-8"
                    )
                print(model, budget, found, flush=True)

        list(pool.map(run_case, [case for case in cases() if " ".join(case) not in runs]))


def in_case_order(runs: dict[str, Any]) -> dict[str, Any]:
    """In the order of CASES, whichever run ended first."""
    return {name: runs[name] for name in map(" ".join, cases()) if name in runs}


def cases() -> list[tuple[str, str]]:
    """The fast ones first."""
    return [(model, budget) for model, budgets in CASES.items() for budget in budgets]


def recorded_runs() -> dict[str, Any]:
    return json.loads(RECORD.read_text("utf-8"))["runs"] if RECORD.is_file() else {}


def reviews(folder: Path, rows: int) -> Path:
    """Reviews from both ends of the file, so that both labels occur."""
    lines = (SHARED / "data" / "ChnSentiCorp_htl_all.csv").read_text("utf-8").splitlines(keepends=True)
    folder.mkdir(exist_ok=True)
    file = folder / "reviews.csv"
    file.write_text("".join([*lines[: rows // 2 + 1], *lines[-rows // 2 :]]), "utf-8")
    return file


def run(model: str, budget: str, data: Path, folder: Path, parallel: int) -> dict[str, Any]:
    out = folder / f"{model}-{budget}"
    command = [sys.executable, "-m", "tightfit", "train", "--json", "--device", "cpu", "--random-weights"]
    command += ["--model", str(SHARED / "models" / model), "--data", str(data)]
    command += ["--budget", budget, "--out", str(out)]
    threads = max(1, len(os.sched_getaffinity(0)) // parallel)
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        preexec_fn=limiter(parse_bytes(budget), out.name),
    )
    result: dict[str, Any] = {"exit": done.returncode, "budget_bytes": parse_bytes(budget), "threads": threads}
    if done.returncode == 0:
        record = json.loads(done.stdout, object_hook=from_data)
        result |= {
            "recipe": record["recipe"],
            "steps": record["steps"],
            "recoveries": [note for note in record["notes"] if any(words in note for words in RECOVERIES)],
            "peak_bytes": record["measured"]["peak_bytes"],
            "predicted_bytes": record["predicted"]["peak_bytes"],
            "seconds_per_step": record["measured"]["seconds_per_step"],
            "predicted_seconds": record["predicted"]["seconds_per_step"],
        }
    else:
        result["error"] = done.stderr.strip().splitlines()[-1:]
    return result


def limit_kind() -> str:
    return "cgroup" if os.access(CGROUPS, os.W_OK) else "RLIMIT_DATA"


def limiter(size: int, name: str) -> Any:
    """A function that puts the calling process under the limit, to be called before the training starts."""
    if limit_kind() != "cgroup":
        return lambda: resource.setrlimit(resource.RLIMIT_DATA, (size, size))
    group = CGROUPS / f"tightfit-{os.getpid()}-{name}"
    group.mkdir(exist_ok=True)
    (group / "memory.force_empty").write_text("0")
    (group / "memory.limit_in_bytes").write_text(str(size))
    return lambda: (group / "cgroup.procs").write_text(str(os.getpid()))


if __name__ == "__main__":
    main()
