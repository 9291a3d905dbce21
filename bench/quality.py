"""F1 on the hotel reviews with Chinese weights: tightfit beside transformers.Trainer, same split, same seeds.

Needs ../shared (data and weights). Writes records/quality.json. `--rows 3000` takes a fixed sample.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
RECORD = ROOT / "records" / "quality.json"
SEEDS = (1, 2, 3)
METRICS = ("f1", "accuracy", "loss")
BASELINE = "transformers.Trainer"
RECIPES = {
    specs: specs.split() if specs != "baseline" else []
    for specs in (
        "baseline",
        "micro-batch:size=1",
        "tiled-attention chunked-layers:size=8,layers=2 length-bucketing adafactor optimizer-in-backward",
        "tiled-attention chunked-layers:size=8,layers=2 adamw-16bit optimizer-in-backward",
        "tiled-attention mixed-precision",
    )
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=None)
    parser.add_argument(
        "--minutes", type=float, default=None, help="start no run after this time; the next call continues"
    )
    given = parser.parse_args()
    results, start = recorded_runs(given.rows), time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, (train, validation) = weights(folder), split(folder, given.rows)
        for recipe, seed in plan():
            if len(results[recipe]) >= seed:  # seeds are counted from 1, so this one is done
                continue
            if given.minutes is not None and time.monotonic() - start > 60 * given.minutes:
                break
            if recipe == BASELINE:
                results[recipe].append(baseline(model, train, validation, seed))
            else:
                out = folder / f"{list(RECIPES).index(recipe)}-{seed}"
                results[recipe].append(ours(model, train, validation, seed, RECIPES[recipe], out))
            save(results, given.rows)


def plan() -> list[tuple[str, int]]:
    """The first seed of every recipe, then the other seeds of the baseline (they give the noise), then the rest."""
    runs = [(recipe, seed) for seed in SEEDS for recipe in (BASELINE, *RECIPES)]
    return sorted(runs, key=lambda run: run[1] != SEEDS[0] and (1 if run[0] == BASELINE else 2))


def recorded_runs(rows: int | None) -> dict[str, list[dict[str, float]]]:
    """What earlier calls have measured with the same number of rows."""
    if RECORD.is_file():
        record = json.loads(RECORD.read_text("utf-8"))
        if record["rows"] == (rows or "all"):
            return {name: record["runs"].get(name, {"each": []})["each"] for name in (BASELINE, *RECIPES)}
    return {name: [] for name in (BASELINE, *RECIPES)}


def weights(folder: Path) -> Path:
    script = SHARED / "tools" / "weights.py"
    subprocess.run([sys.executable, str(script), str(folder), "m3e-small"], check=True, stdout=sys.stderr)
    return folder / "m3e-small"


def split(folder: Path, wanted: int | None) -> tuple[Path, Path]:
    """A tenth held out, stratified, the same for every run; the one empty review is left out."""
    with (SHARED / "data" / "ChnSentiCorp_htl_all.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["review"].strip()]
    random.Random(0).shuffle(rows)
    rows = rows[:wanted]
    held_out = []
    for label in ("0", "1"):
        of_label = [row for row in rows if row["label"] == label]
        held_out += of_label[: round(len(of_label) / 10)]
    train = [row for row in rows if not any(row is other for other in held_out)]
    return write(folder / "train.csv", train), write(folder / "validation.csv", held_out)


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["label", "review"])
        writer.writeheader()
        writer.writerows(rows)
    return path


def baseline(model: Path, train: Path, validation: Path, seed: int) -> dict[str, float]:
    script = str(ROOT / "bench" / "baseline.py")
    printed = run([script, "--model", model, "--train", train, "--validation", validation, "--seed", seed])
    found = json.loads(printed.splitlines()[-1])  # the lines above are printed by Trainer
    return {key: found[key] for key in METRICS}


def ours(model: Path, train: Path, validation: Path, seed: int, use: list[str], out: Path) -> dict[str, float]:
    command = ["-m", "tightfit", "train", "--json", "--device", "cpu", "--budget", "none", "--out", out]
    command += ["--model", model, "--data", train, "--validation", validation, "--seed", seed]
    command += ["--batch-size", 32, "--max-length", 128, "--epochs", 1, "--learning-rate", 2e-5]
    record = json.loads(run([*command, *(part for spec in use for part in ("--use", spec))]))
    return {key: record["metrics"][f"eval_{key}"] for key in METRICS}


def run(command: list[object]) -> str:
    print(*command, flush=True)
    return subprocess.run([sys.executable, *map(str, command)], check=True, stdout=subprocess.PIPE, text=True).stdout


def save(results: dict[str, list[dict[str, float]]], rows: int | None) -> None:
    scores = [result["f1"] for result in results[BASELINE]]
    record = {
        "data": "ChnSentiCorp_htl_all.csv",
        "rows": rows or "all",
        "model": "m3e-small",
        "seed_noise": max(scores) - min(scores),
        "runs": {
            name: {"f1": statistics.mean(r["f1"] for r in runs), "each": runs} for name, runs in results.items() if runs
        },
    }
    RECORD.parent.mkdir(exist_ok=True)
    RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
