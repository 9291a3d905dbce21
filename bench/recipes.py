"""The tutorials' ladder and ours by the verb itself: for BERT-Large's shape, and for real weights with F1.

Chinese macbert-large has random weights here and trains some steps on all the hotel reviews; MiniLM has its real ones
and trains to the end on English film reviews. Works in build/rungs and writes records/rungs-*.json; a later call
goes on where an earlier one stopped. Needs ../shared.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import time
from pathlib import Path

from quality import ROOT, SHARED
from tightfit.comparison.comparison import find_rungs
from tightfit.demo import demo_job
from tightfit.job import Job
from tightfit.strategies.recipe import Recipe

WORK = ROOT / "build" / "rungs"
NAMES = {"recipes-macbert-large": "chinese-macbert-large", "recipes-minilm": "all-MiniLM-L6-v2"}
FILMS = 1000  # reviews
HOTELS = ["--random-weights", "--steps", "2", "--budget", "4GB"]
WITH_SCORES = ["--full", "--seeds", "1", "--max-length", "64", "--learning-rate", "5e-5"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=None, help="begin no rung after this; a later call goes on")
    given = parser.parse_args()
    start = time.monotonic()
    WORK.mkdir(parents=True, exist_ok=True)
    for name, (job, options, rungs) in ladders().items():
        for recipe in rungs:
            if given.minutes is not None and time.monotonic() - start > 60 * given.minutes:
                return
            measurement(name, job, options, " ".join(recipe.specs) or "plain")


def ladders() -> dict[str, tuple[Job, list[str], list[Recipe]]]:
    hotels = SHARED / "data" / "ChnSentiCorp_htl_all.csv"
    large = Job(model=str(SHARED / "models" / "chinese-macbert-large"), data=str(hotels))
    small = Job(model=demo_job().model, data=str(films()), max_length=64)
    few = [
        *find_rungs(
            ["plain", "micro-batch:size=1", "micro-batch:size=1 gradient-checkpointing adafactor", "freeze"],
            small,
            "cpu",
        )
    ]
    return {
        "recipes-macbert-large": (large, HOTELS, find_rungs("all", large, "cpu")),
        "recipes-minilm": (small, WITH_SCORES, [*few, *find_rungs("ours", small, "cpu")[1:]]),
    }


def films() -> Path:
    """The first sentences of the file, with column names."""
    lines = (SHARED / "data" / "sst2" / "train.tsv").read_text("utf-8").splitlines()[:FILMS]
    file = WORK / "films.csv"
    with file.open("w", encoding="utf-8", newline="") as out:
        csv.writer(out).writerows([("review", "label"), *(line.split("\t") for line in lines)])
    return file


def measurement(name: str, job: Job, options: list[str], rung: str) -> None:
    out = WORK / name
    command = [sys.executable, "-m", "tightfit", "comparison", "--model", job.model, "--data", job.data, *options]
    subprocess.run([*command, "--device", "cpu", "--recipe", rung, "--out", str(out)], check=True, stdout=sys.stderr)
    text = (out / "comparison.json").read_text("utf-8")
    for path, shown in ((job.model, NAMES[name]), (job.data, Path(job.data).name)):
        text = text.replace(str(Path(path).resolve()), shown)
    (ROOT / "records" / f"{name}.json").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
