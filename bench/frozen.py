"""Epoch 2 against epoch 1 where only the head learns: what is frozen runs once, or in every epoch.

Each run is a process of its own. m3e-small with its weights, macbert-large's shape with random ones, real reviews.
Needs ../shared (data and weights). Writes records/frozen.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from ladder import shape
from quality import ROOT, run, split, weights

RECORD = ROOT / "records" / "frozen.json"
EPOCHS = 3
RECIPES = ["freeze", "freeze:cache=false"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2000, help="of the small model's data")
    parser.add_argument("--large-rows", type=int, default=200, help="of the large model's; 0 leaves it out")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs = [measured(folder, weights(folder), given.rows, recipe, []) for recipe in RECIPES]
        if given.large_rows:
            runs.append(measured(folder, shape(folder, None), given.large_rows, RECIPES[0], ["--random-weights"]))
    record = {"data": "ChnSentiCorp_htl_all.csv", "batch": 32, "length": 128, "runs": runs}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    print(json.dumps(record, indent=1))


def measured(folder: Path, model: Path, rows: int, recipe: str, more: list[str]) -> dict[str, object]:
    train, validation = split(folder, rows)
    command = ["-m", "tightfit", "train", "--json", "--device", "cpu", "--model", model, "--use", recipe, *more]
    command += ["--data", train, "--validation", validation, "--epochs", EPOCHS, "--learning-rate", 1e-3]
    record = json.loads(run([*command, "--out", folder / f"{model.name}-{recipe.replace(':', '-')}"]))
    first, *later = record["measured"]["epochs"]
    return {
        "model": "chinese-macbert-large" if more else model.name,
        "rows": rows,
        "recipe": recipe,
        "epochs": [first, *later],
        "ratio": max(later) / first,
        "f1": None if more else record["metrics"]["eval_f1"],
        "peak_bytes": record["measured"]["peak_bytes"],
        "foretold_bytes": record["predicted"]["peak_bytes"],
    }


if __name__ == "__main__":
    main()
