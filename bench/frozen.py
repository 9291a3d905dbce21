"""Time of epoch 2 against epoch 1 where only the head is trained, with and without the feature cache.

Each run has its own process: m3e-small with its weights, the shape of macbert-large with random weights, real reviews.
Needs ../shared (data and weights). Writes records/frozen.json; runs that are in it are not repeated.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from comparison import copy_shape
from quality import ROOT, run, split, weights

RECORD = ROOT / "records" / "frozen.json"
SMALL, LARGE = "m3e-small", "chinese-macbert-large"
EPOCHS = {"freeze": 3, "freeze:cache=false": 2}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2000, help="rows for the small model")
    parser.add_argument("--large-rows", type=int, default=200, help="rows for the large model; 0 skips it")
    given = parser.parse_args()
    plan = [
        (SMALL, given.rows, "freeze"),
        (LARGE, given.large_rows, "freeze"),
        (SMALL, given.rows, "freeze:cache=false"),
    ]
    runs = json.loads(RECORD.read_text("utf-8"))["runs"] if RECORD.is_file() else []
    for model, rows, recipe in plan:
        if rows and not any((model, rows, recipe) == (r["model"], r["rows"], r["recipe"]) for r in runs):
            with tempfile.TemporaryDirectory() as folder:
                runs.append(measure(Path(folder), model, rows, recipe))
            save(runs)


def save(runs: list[dict[str, object]]) -> None:
    record = {"data": "ChnSentiCorp_htl_all.csv", "batch": 32, "length": 128, "runs": runs}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


def measure(folder: Path, model: str, rows: int, recipe: str) -> dict[str, object]:
    train, validation = split(folder, rows)
    source = [weights(folder)] if model == SMALL else [copy_shape(folder, None), "--random-weights"]
    command = ["-m", "tightfit", "train", "--json", "--device", "cpu", "--use", recipe, "--model", *source]
    command += ["--data", train, "--validation", validation, "--epochs", EPOCHS[recipe], "--learning-rate", 1e-3]
    return summary(model, rows, recipe, json.loads(run([*command, "--out", folder / "run"])))


def summary(model: str, rows: int, recipe: str, record: dict[str, Any]) -> dict[str, object]:
    first, *later = record["measured"]["epochs"]
    return {
        "model": model,
        "rows": rows,
        "recipe": recipe,
        "epochs": [first, *later],
        "ratio": max(later) / first,
        "f1": record["metrics"]["eval_f1"] if model == SMALL else None,
        "peak_bytes": record["measured"]["peak_bytes"],
        "predicted_bytes": record["predicted"]["peak_bytes"],
    }


if __name__ == "__main__":
    main()
