"""The same result: BERT-Large after twenty steps, our `same` recipes beside transformers.Trainer, dropout off.

Shape of macbert-large with random weights that all begin with, real reviews, small batches (it is arithmetic that is
compared, not speed). Needs ../shared. Writes records/same.json; a later call goes on where an earlier one stopped.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from ladder import MODEL, shape

from quality import BASELINE, ROOT, run, split

RECORD = ROOT / "records" / "same.json"
STEPS, BATCH, LENGTH = 20, 4, 64
RECIPES = [
    "tiled-attention chunked-layers:size=2,layers=2",
    "tiled-attention micro-batch:size=2 gradient-checkpointing:every=2",
    "chunked-layers:size=1",
    "plain",
]


def main() -> None:
    losses = json.loads(RECORD.read_text("utf-8"))["losses"] if RECORD.is_file() else {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, files = without_chance(shape(folder, None)), split(folder, 600)
        for recipe in (BASELINE, *RECIPES):
            if recipe not in losses:
                losses[recipe] = loss(recipe, model, *files, folder / "run")
                save(losses)
                print(recipe, losses[recipe], flush=True)


def without_chance(model: Path) -> Path:
    """No dropout, and weights in a file."""
    from transformers import AutoConfig, AutoModelForSequenceClassification, set_seed

    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "classifier_dropout": 0.0}
    set_seed(0)
    AutoModelForSequenceClassification.from_config(AutoConfig.from_pretrained(model, **off)).save_pretrained(model)
    return model


def loss(recipe: str, model: Path, train: Path, validation: Path, out: Path) -> float:
    """On the validation rows, after the steps."""
    how: list[object] = ["--model", model, "--validation", validation, "--max-steps", STEPS, "--seed", 1]
    how += ["--batch-size", BATCH, "--max-length", LENGTH]
    if recipe == BASELINE:
        printed = run([ROOT / "bench" / "baseline.py", *how, "--train", train])
        return float(json.loads(printed.splitlines()[-1])["loss"])
    words = [word for strategy in recipe.split() if strategy != "plain" for word in ("--use", strategy)]
    command = ["-m", "tightfit", "train", "--json", "--device", "cpu", "--learning-rate", 2e-5, "--data", train]
    record = json.loads(run([*command, *how, "--out", f"{out}-{RECIPES.index(recipe)}", *words]))
    return float(record["metrics"]["eval_loss"])


def save(losses: dict[str, float]) -> None:
    about: dict[str, Any] = {"model": MODEL, "steps": STEPS, "batch": BATCH, "length": LENGTH}
    RECORD.write_text(json.dumps({**about, "losses": losses}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
