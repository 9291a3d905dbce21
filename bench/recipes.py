"""The recipes of both presets as `tightfit compare` measures them: BERT-Large by shape, MiniLM with F1.

macbert-large has random weights and trains a few steps on all hotel reviews; MiniLM has its real weights and trains to
the end on English film reviews. Works in build/recipes and writes records/recipes-*.json; the next call continues where
the last one stopped. Needs ../shared.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import time
from pathlib import Path

from quality import ROOT, SHARED
from tightfit.comparison.comparison import find_recipes
from tightfit.demo import demo_weights
from tightfit.job import Job
from tightfit.strategies.recipe import Recipe

WORK = ROOT / "build" / "recipes"
NAMES = {"recipes-macbert-large": "chinese-macbert-large", "recipes-minilm": "all-MiniLM-L6-v2"}
FILMS = 1000  # reviews
HOTELS = ["--random-weights", "--steps", "2", "--budget", "4GB"]
WITH_SCORES = ["--full", "--seeds", "1", "--max-length", "64", "--learning-rate", "5e-5"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--minutes", type=float, default=None, help="start no recipe after this time; the next call continues"
    )
    given = parser.parse_args()
    start = time.monotonic()
    WORK.mkdir(parents=True, exist_ok=True)
    for name, (job, options, recipes) in comparisons().items():
        for recipe in recipes:
            if given.minutes is not None and time.monotonic() - start > 60 * given.minutes:
                return
            compare(name, job, options, " ".join(recipe.specs) or "baseline")


def comparisons() -> dict[str, tuple[Job, list[str], list[Recipe]]]:
    hotels = SHARED / "data" / "ChnSentiCorp_htl_all.csv"
    large = Job(model=str(SHARED / "models" / "chinese-macbert-large"), data=str(hotels))
    small = Job(model=str(demo_weights()), data=str(films()), max_length=64)
    specs = ["baseline", "micro-batch:size=1", "micro-batch:size=1 gradient-checkpointing adafactor", "freeze"]
    few = find_recipes(specs, small, "cpu")
    return {
        "recipes-macbert-large": (large, HOTELS, find_recipes("all", large, "cpu")),
        "recipes-minilm": (small, WITH_SCORES, [*few, *find_recipes("tightfit", small, "cpu")[1:]]),
    }


def films() -> Path:
    """The first sentences of the file, with a header."""
    lines = (SHARED / "data" / "sst2" / "train.tsv").read_text("utf-8").splitlines()[:FILMS]
    file = WORK / "films.csv"
    with file.open("w", encoding="utf-8", newline="") as out:
        csv.writer(out).writerows([("review", "label"), *(line.split("\t") for line in lines)])
    return file


def compare(name: str, job: Job, options: list[str], recipe: str) -> None:
    """Measure one recipe, and copy the comparison without machine paths to records/."""
    out = WORK / name
    command = [sys.executable, "-m", "tightfit", "compare", "--model", job.model, "--data", job.data, *options]
    subprocess.run([*command, "--device", "cpu", "--recipe", recipe, "--out", str(out)], check=True, stdout=sys.stderr)
    text = (out / "comparison.json").read_text("utf-8")
    for path, shown in ((job.model, NAMES[name]), (job.data, Path(job.data).name)):
        text = text.replace(str(Path(path).resolve()), shown)
    (ROOT / "records" / f"{name}.json").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
