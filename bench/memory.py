"""Foretold beside measured peak of real runs, each in a fresh process. Needs ../shared. Writes records/memory.json.

Runs that are in the record already are not repeated: delete the file to begin anew. The spread of the errors goes
to src/tightfit/rehearsal/accuracy.json, from which bills take their error band.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import transformers

from quality import ROOT, SHARED, split

RECORD = ROOT / "records" / "memory.json"
ACCURACY = ROOT / "src" / "tightfit" / "simulation" / "accuracy.json"
MADE = {  # architectures of which there is no folder: their library's own default shape
    "electra-base": ("ElectraConfig", {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}),
    "mpnet-base": ("MPNetConfig", {}),
    "albert-base": ("AlbertConfig", {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}),
    "xlm-roberta-6": ("XLMRobertaConfig", {"vocab_size": 60000, "num_hidden_layers": 6}),
    "minilm": ("BertConfig", {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536}),
}
SMALL = ["", "micro-batch:size=8", "micro-batch:size=2 adafactor", "micro-batch:size=4 gradient-checkpointing"]
LEANEST = "tiled-attention chunked-layers:size=2 adafactor optimizer-in-backward"
PLAN: dict[str, list[str]] = {  # model, batch x length: recipes
    "minilm 32x128": [*SMALL, "micro-batch:size=16 mixed-precision"],
    "rbt3 32x128": [*SMALL, "micro-batch:size=16", "freeze:layers=2", "adamw:fused=false micro-batch:size=8"],
    "rbt3 32x96": [
        "tiled-attention micro-batch:size=8",
        "tiled-attention chunked-layers:size=8 adafactor optimizer-in-backward",
        "tiled-attention chunked-layers:size=4,layers=2 length-bucketing adafactor optimizer-in-backward",
        "micro-batch:size=8 adamw-8bit",
        "micro-batch:size=8 length-bucketing adamw-16bit",
    ],
    "rbt3 64x64": ["", "micro-batch:size=1", "micro-batch:size=32 gradient-checkpointing:every=2"],
    "rbt3 8x512": ["micro-batch:size=2", "micro-batch:size=4 max-length:tokens=256"],
    "distilbert-base-uncased 16x128": [
        *SMALL,
        "freeze",
        "tiled-attention chunked-layers:size=4 length-bucketing adamw-8bit optimizer-in-backward",
    ],
    "t5-small 16x96": [
        "micro-batch:size=8",
        "micro-batch:size=4 gradient-checkpointing",
        "micro-batch:size=4 adafactor",
    ],
    "albert-base 16x128": ["micro-batch:size=8", "micro-batch:size=8 gradient-checkpointing"],
    "electra-base 16x64": ["micro-batch:size=8", "micro-batch:size=4 gradient-checkpointing adafactor"],
    "mpnet-base 16x64": ["micro-batch:size=4", "micro-batch:size=4 freeze:layers=6"],
    "gpt2 8x128": ["micro-batch:size=4", "micro-batch:size=2 gradient-checkpointing adafactor", "freeze", LEANEST],
    "xlm-roberta-6 16x64": ["micro-batch:size=8", "micro-batch:size=8 adafactor"],
    "ModernBERT-base 8x128": ["micro-batch:size=4", "micro-batch:size=4 gradient-checkpointing"],
    "deberta-v3-base 8x96": ["micro-batch:size=4", "micro-batch:size=2 gradient-checkpointing adafactor"],
    "bert-base-chinese 16x128": [
        "",
        *SMALL[1:],
        "gradient-checkpointing",
        "freeze",
        "micro-batch:size=8 freeze:layers=6",
        "micro-batch:size=8 lora",
        "tiled-attention gradient-checkpointing length-bucketing adafactor optimizer-in-backward",
        "tiled-attention chunked-layers:size=4,layers=2 adafactor optimizer-in-backward",
        "micro-batch:size=4 adamw-16bit",
    ],
    "bert-base-chinese 16x64": ["micro-batch:size=1", "micro-batch:size=8 gradient-checkpointing:every=3"],
    "bert-base-chinese 4x512": ["micro-batch:size=2", "micro-batch:size=1 gradient-checkpointing adafactor"],
    "chinese-macbert-large 4x128": [
        "micro-batch:size=2",
        "micro-batch:size=4 gradient-checkpointing",
        "micro-batch:size=2 gradient-checkpointing adafactor",
    ],
    "chinese-macbert-large 8x64": [
        "micro-batch:size=4 adafactor",
        "freeze",
        "micro-batch:size=4 freeze:layers=12",
        "lora gradient-checkpointing",
    ],
    "roberta-large 4x96": ["micro-batch:size=2 adafactor", "micro-batch:size=2 freeze:layers=20", LEANEST],
    "rbt3 8x64": ["mixed-precision"],  # few tokens: without instructions for it a product takes fifty times as long
    "bert-base-chinese 4x64": ["micro-batch:size=2 mixed-precision"],
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=None, help="begin no run after this; a later call goes on")
    given = parser.parse_args()
    start, runs = time.monotonic(), earlier()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = split(folder, 400)
        for configuration, recipe in ((c, r) for c, recipes in PLAN.items() for r in recipes):
            if any((run["configuration"], run["recipe"]) == (configuration, recipe or "plain") for run in runs):
                continue
            if given.minutes is not None and time.monotonic() - start > 60 * given.minutes:
                break
            runs.append(measured(configuration, recipe, data, folder))
            save(runs)


def earlier() -> list[dict[str, Any]]:
    return json.loads(RECORD.read_text("utf-8"))["runs"] if RECORD.is_file() else []


def measured(configuration: str, recipe: str, data: tuple[Path, Path], folder: Path) -> dict[str, Any]:
    name, _, shape = configuration.partition(" ")
    batch, _, length = shape.partition("x")
    out = folder / "run"
    command = [sys.executable, "-m", "tightfit", "train", "--json", "--random-weights", "--max-steps", "3"]
    command += ["--model", model(name, folder), "--data", data[0], "--validation", data[1], "--out", out]
    command += ["--batch-size", batch, "--max-length", length, "--device", "cpu"]
    command += [word for strategy in recipe.split() for word in ("--use", strategy)]
    done = subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True)
    shutil.rmtree(out)
    record = json.loads(done.stdout)
    run = {
        "configuration": configuration,
        "recipe": recipe or "plain",
        "parameters": record["parameters"],
        "predicted": record["predicted"]["peak_bytes"],
        "measured": record["measured"]["peak_bytes"],
        "predicted_moments": record["predicted"]["phases"],
        "measured_moments": record["measured"]["phases"],
    }
    print(configuration, recipe, f"{run['predicted'] / run['measured'] - 1:+.1%}", flush=True)
    return run


def model(name: str, folder: Path) -> Path:
    """A folder with the model's shape and a tokenizer; where it has none, that of bert-base-chinese will do."""
    there, mine = SHARED / "models" / name, folder / name
    if any(there.glob("tokenizer*")):
        return there
    if not mine.is_dir():
        shutil.copytree(SHARED / "models" / "bert-base-chinese", mine)
        transformers.AutoTokenizer.from_pretrained(mine).save_pretrained(
            mine
        )  # its special tokens, written out for other architectures
        if name in MADE:
            kind, settings = MADE[name]
            getattr(transformers, kind)(**settings).save_pretrained(mine)
        else:
            shutil.copy(there / "config.json", mine / "config.json")
    return mine


def save(runs: list[dict[str, Any]]) -> None:
    RECORD.write_text(json.dumps({"device": "cpu", "runs": runs}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
