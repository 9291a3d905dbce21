"""The promise: what `plan` says fits is trained under a hard limit of exactly that budget, and must not die.

Every run is `tightfit train --budget`, with steps, evaluation and saving, alone in a memory cgroup whose limit is the
budget: the kernel ends what takes more. Where there are no cgroups to write to, the limit is on the process's data
(RLIMIT_DATA). Shapes from ../shared/models with random weights, real reviews. Writes records/promise.json; a later
call goes on where an earlier one stopped.
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
from tightfit.units import parse_bytes

RECORD = ROOT / "records" / "promise.json"
GROUPS = Path("/sys/fs/cgroup/memory")
WRITING = threading.Lock()
ROWS, FEWER_ROWS = 320, 160  # an epoch of them is trained whole
SMALL = ("rbt3", "distilbert-base-uncased")  # steps of the others take a minute or more on one core
MENDED = ("planned again", "out of memory")  # what would let a wrong plan come to its end
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
    parser.add_argument("--minutes", type=float, default=None, help="begin no run after this; a later call goes on")
    parser.add_argument("--at-once", type=int, default=1, help="runs side by side, which share the cores")
    given = parser.parse_args()
    runs, start = earlier(), time.monotonic()
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(given.at_once) as pool:
        many, few = (reviews(Path(name) / str(rows), rows) for rows in (ROWS, FEWER_ROWS))

        def one(case: tuple[str, str]) -> None:
            model, budget = case
            if given.minutes is None or time.monotonic() - start < 60 * given.minutes:
                found = run(model, budget, many if model in SMALL else few, Path(name), given.at_once)
                with WRITING:
                    runs[f"{model} {budget}"] = found
                    RECORD.write_text(
                        json.dumps({"limit": limit_kind(), "runs": in_order(runs)}, indent=1) + "\n", "utf-8"
                    )
                print(model, budget, found, flush=True)

        list(pool.map(one, [case for case in cases() if " ".join(case) not in runs]))


def in_order(runs: dict[str, Any]) -> dict[str, Any]:
    """As they stand above, whichever was done first."""
    return {name: runs[name] for name in map(" ".join, cases()) if name in runs}


def cases() -> list[tuple[str, str]]:
    """The quick ones first."""
    return [(model, budget) for model, budgets in CASES.items() for budget in budgets]


def earlier() -> dict[str, Any]:
    return json.loads(RECORD.read_text("utf-8"))["runs"] if RECORD.is_file() else {}


def reviews(folder: Path, rows: int) -> Path:
    """Reviews from both ends of the file, so that both labels are there."""
    lines = (SHARED / "data" / "ChnSentiCorp_htl_all.csv").read_text("utf-8").splitlines(keepends=True)
    folder.mkdir(exist_ok=True)
    file = folder / "reviews.csv"
    file.write_text("".join([*lines[: rows // 2 + 1], *lines[-rows // 2 :]]), "utf-8")
    return file


def run(model: str, budget: str, data: Path, folder: Path, at_once: int) -> dict[str, Any]:
    out = folder / f"{model}-{budget}"
    command = [sys.executable, "-m", "tightfit", "train", "--json", "--device", "cpu", "--random-weights"]
    command += ["--model", str(SHARED / "models" / model), "--data", str(data)]
    command += ["--budget", budget, "--out", str(out)]
    threads = max(1, len(os.sched_getaffinity(0)) // at_once)
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        preexec_fn=limited(parse_bytes(budget), out.name),
    )
    result: dict[str, Any] = {"exit": done.returncode, "budget_bytes": parse_bytes(budget), "threads": threads}
    if done.returncode == 0:
        said = json.loads(done.stdout)
        result |= {
            "recipe": said["recipe"],
            "steps": said["steps"],
            "not_as_planned": [note for note in said["notes"] if any(words in note for words in MENDED)],
            "peak_bytes": said["measured"]["peak_bytes"],
            "predicted_bytes": said["predicted"]["peak_bytes"],
            "seconds_per_step": said["measured"]["seconds_per_step"],
            "predicted_seconds": said["predicted"]["seconds_per_step"],
        }
    else:
        result["said"] = done.stderr.strip().splitlines()[-1:] or ["nothing"]
    return result


def limit_kind() -> str:
    return "cgroup" if os.access(GROUPS, os.W_OK) else "RLIMIT_DATA"


def limited(size: int, name: str) -> Any:
    """What a process does before it becomes the training: move into a group with that limit."""
    if limit_kind() != "cgroup":
        return lambda: resource.setrlimit(resource.RLIMIT_DATA, (size, size))
    group = GROUPS / f"tightfit-{os.getpid()}-{name}"
    group.mkdir(exist_ok=True)
    (group / "memory.force_empty").write_text("0")
    (group / "memory.limit_in_bytes").write_text(str(size))
    return lambda: (group / "cgroup.procs").write_text(str(os.getpid()))


if __name__ == "__main__":
    main()
