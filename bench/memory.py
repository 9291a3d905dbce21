"""Foretold beside measured peak of real runs, each in a fresh process. Needs ../shared. Writes records/memory.json."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from quality import RECORD as QUALITY
from quality import SHARED, split

RECORD = QUALITY.with_name("memory.json")
RUNS = [  # model, batch, length, recipe
    ("rbt3", 32, 128, ""),
    ("rbt3", 32, 128, "slice:size=8"),
    ("rbt3", 32, 64, "slice:size=2 adafactor"),
    ("bert-base-chinese", 32, 128, "slice:size=8"),
    ("bert-base-chinese", 32, 128, "slice:size=8 checkpoint"),
    ("bert-base-chinese", 32, 128, "slice:size=4 checkpoint adafactor"),
    ("bert-base-chinese", 32, 128, "slice:size=8 freeze:layers=6"),
    ("chinese-macbert-large", 8, 128, "slice:size=4 checkpoint"),
    ("chinese-macbert-large", 8, 128, "slice:size=4 checkpoint adafactor"),
    ("chinese-macbert-large", 8, 128, "freeze"),
]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        train, validation = split(Path(folder), 400)
        runs = [measured(*run, train, validation, Path(folder) / str(i)) for i, run in enumerate(RUNS)]
    RECORD.write_text(json.dumps({"device": "cpu", "runs": runs}, indent=1) + "\n", "utf-8")


def measured(model: str, batch: int, length: int, recipe: str, train: Path, validation: Path, out: Path) -> dict:
    command = [sys.executable, "-m", "tightfit", "train", "--json", "--random-weights", "--max-steps", "3"]
    command += ["--model", SHARED / "models" / model, "--data", train, "--validation", validation, "--out", out]
    command += ["--batch-size", batch, "--max-length", length, "--device", "cpu"]
    command += [word for strategy in recipe.split() for word in ("--use", strategy)]
    done = subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True)
    record = json.loads(done.stdout)
    run = {
        "model": model,
        "batch": batch,
        "length": length,
        "recipe": recipe or "plain",
        "predicted": record["predicted"]["peak_bytes"],
        "measured": record["measured"]["peak_bytes"],
        "predicted_moments": record["predicted"]["moments"],
        "measured_moments": record["measured"]["moments"],
    }
    print(model, recipe, f"{run['predicted'] / run['measured'] - 1:+.1%}", flush=True)
    return run


if __name__ == "__main__":
    sys.exit(main())
