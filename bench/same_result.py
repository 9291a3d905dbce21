"""Loss of BERT-Large after twenty steps without dropout: recipes with result `same` beside transformers.Trainer.

The shape of macbert-large, the same random weights for all, real reviews, small batches (arithmetic is compared, not
speed). Needs ../shared. Writes records/same_result.json; the next call continues where the last one stopped.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from comparison import MODEL, copy_shape
from quality import BASELINE, ROOT, run, split

RECORD = ROOT / "records" / "same_result.json"
STEPS, BATCH, LENGTH = 20, 4, 64
RECIPES = [
    "tiled-attention chunked-layers:size=2,layers=2",
    "tiled-attention micro-batch:size=2 gradient-checkpointing:every=2",
    "chunked-layers:size=1",
    "baseline",
]


def main() -> None:
    losses = json.loads(RECORD.read_text("utf-8"))["losses"] if RECORD.is_file() else {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, files = with_fixed_weights(copy_shape(folder, None)), split(folder, 600)
        for recipe in (BASELINE, *RECIPES):
            if recipe not in losses:
                losses[recipe] = final_loss(recipe, model, *files, folder / "run")
                save(losses)
                print(recipe, losses[recipe], flush=True)


def with_fixed_weights(model: Path) -> Path:
    """Random weights written to a file, and a config without dropout."""
    from transformers import AutoConfig, AutoModelForSequenceClassification, set_seed

    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "classifier_dropout": 0.0}
    set_seed(0)
    AutoModelForSequenceClassification.from_config(AutoConfig.from_pretrained(model, **off)).save_pretrained(model)
    return model


def final_loss(recipe: str, model: Path, train: Path, validation: Path, out: Path) -> float:
    """The loss on the validation rows after the steps."""
    options: list[object] = ["--model", model, "--validation", validation, "--max-steps", STEPS, "--seed", 1]
    options += ["--batch-size", BATCH, "--max-length", LENGTH]
    if recipe == BASELINE:
        printed = run([ROOT / "bench" / "baseline.py", *options, "--train", train])
        return float(json.loads(printed.splitlines()[-1])["loss"])
    use = [part for spec in recipe.split() if spec != "baseline" for part in ("--use", spec)]
    command = ["-m", "tightfit", "train", "--json", "--device", "cpu", "--learning-rate", 2e-5, "--data", train]
    record = json.loads(run([*command, *options, "--out", f"{out}-{RECIPES.index(recipe)}", *use]))
    return float(record["metrics"]["eval_loss"])


def save(losses: dict[str, float]) -> None:
    about: dict[str, Any] = {"model": MODEL, "steps": STEPS, "batch": BATCH, "length": LENGTH}
    RECORD.write_text(json.dumps({**about, "losses": losses}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
