"""Predicted and measured peak memory of real runs, each in a fresh process. Needs ../shared.

Writes records/memory.json. Runs that are in it are not repeated: delete the file to measure everything again. `make
docs` computes the error band of estimates from it (src/tightfit/simulation/accuracy.json).
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
FROM_CONFIG = {  # architectures without a folder in ../shared/models: made from the default config of transformers
    "electra-base": ("ElectraConfig", {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}),
    "mpnet-base": ("MPNetConfig", {}),
    "albert-base": ("AlbertConfig", {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}),
    "xlm-roberta-6": ("XLMRobertaConfig", {"vocab_size": 60000, "num_hidden_layers": 6}),
    "minilm": ("BertConfig", {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536}),
    "m3e-small": (
        "BertConfig",
        {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8}
        | {"intermediate_size": 2048, "vocab_size": 21128},
    ),
}
SMALL = ["", "micro-batch:size=8", "micro-batch:size=2 adafactor", "micro-batch:size=4 gradient-checkpointing"]
SMALLEST = "tiled-attention chunked-layers:size=2 adafactor optimizer-in-backward"
PLAN: dict[str, list[str]] = {  # model, batch x length: recipes
    "minilm 32x128": [*SMALL, "micro-batch:size=16 mixed-precision", "micro-batch:size=8 lora quantize"],
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
    "gpt2 8x128": ["micro-batch:size=4", "micro-batch:size=2 gradient-checkpointing adafactor", "freeze", SMALLEST],
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
        "micro-batch:size=8 lora quantize",
        "micro-batch:size=4 lora quantize gradient-checkpointing",
        "micro-batch:size=4 lora quantize:bits=8",
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
        "micro-batch:size=4 lora quantize gradient-checkpointing",
        "micro-batch:size=4 lora quantize:dtype=fp32",
    ],
    "roberta-large 4x96": ["micro-batch:size=2 adafactor", "micro-batch:size=2 freeze:layers=20", SMALLEST],
    # In 16 bits: where a CPU has no bf16 instructions, a product takes up to fifty times as long, so most are small.
    "m3e-small 2x128": ["mixed-precision", "bf16-weights"],
    "rbt3 8x64": ["mixed-precision", "bf16-weights", "bf16-weights adafactor"],
    "bert-base-chinese 4x64": ["micro-batch:size=2 mixed-precision"],
    "bert-base-chinese 8x64": [
        "micro-batch:size=4 mixed-precision",
        "micro-batch:size=4 bf16-weights",
        "micro-batch:size=4 mixed-precision gradient-checkpointing",
    ],
    "minilm 16x128": ["micro-batch:size=8 mixed-precision", "micro-batch:size=8 bf16-weights"],
    "m3e-small 32x128": [
        "mixed-precision",
        "bf16-weights",
        "tiled-attention mixed-precision",
        "tiled-attention bf16-weights",
        "tiled-attention chunked-layers:size=8 mixed-precision adafactor optimizer-in-backward",
    ],
    "rbt3 16x96": ["tiled-attention micro-batch:size=8 mixed-precision", "tiled-attention mixed-precision"],
}
SIXTEEN_BITS = ("mixed-precision", "bf16-weights")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--minutes", type=float, default=None, help="start no run after this time; the next call continues"
    )
    parser.add_argument("--again-in-16-bits", action="store_true", help="measure the runs in 16 bits again")
    given = parser.parse_args()
    start, runs = time.monotonic(), recorded_runs()
    if given.again_in_16_bits:
        runs = [run for run in runs if not any(name in run["recipe"] for name in SIXTEEN_BITS)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = split(folder, 400)
        for configuration, recipe in ((c, r) for c, recipes in PLAN.items() for r in recipes):
            if any((run["configuration"], run["recipe"]) == (configuration, recipe or "baseline") for run in runs):
                continue
            if given.minutes is not None and time.monotonic() - start > 60 * given.minutes:
                break
            runs.append(measure(configuration, recipe, data, folder))
            save(runs)


def recorded_runs() -> list[dict[str, Any]]:
    return json.loads(RECORD.read_text("utf-8"))["runs"] if RECORD.is_file() else []


def measure(configuration: str, recipe: str, data: tuple[Path, Path], folder: Path) -> dict[str, Any]:
    name, _, shape = configuration.partition(" ")
    batch, _, length = shape.partition("x")
    out = folder / "run"
    command: list[object] = [
        sys.executable,
        "-m",
        "tightfit",
        "train",
        "--json",
        "--random-weights",
        "--max-steps",
        "3",
    ]
    command += ["--model", model(name, folder), "--data", data[0], "--validation", data[1], "--out", out]
    command += ["--batch-size", batch, "--max-length", length, "--device", "cpu", "--budget", "none"]
    command += [part for spec in recipe.split() for part in ("--use", spec)]
    done = subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True)
    shutil.rmtree(out)
    record = json.loads(done.stdout)
    run = {
        "configuration": configuration,
        "recipe": recipe or "baseline",
        "parameters": record["parameters"],
        "predicted": record["predicted"]["peak_bytes"],
        "measured": record["measured"]["peak_bytes"],
        "predicted_phases": record["predicted"]["phases"],
        "measured_phases": record["measured"]["phases"],
    }
    print(configuration, recipe, f"{run['predicted'] / run['measured'] - 1:+.1%}", flush=True)
    return run


def model(name: str, folder: Path) -> Path:
    """A folder with the model's config and a tokenizer, that of bert-base-chinese where it has none of its own."""
    shared, own = SHARED / "models" / name, folder / name
    if any(shared.glob("tokenizer*")):
        return shared
    if not own.is_dir():
        shutil.copytree(SHARED / "models" / "bert-base-chinese", own)
        # Saved again so that its special tokens are written out, which other architectures need.
        transformers.AutoTokenizer.from_pretrained(own).save_pretrained(own)
        if name in FROM_CONFIG:
            kind, settings = FROM_CONFIG[name]
            getattr(transformers, kind)(**settings).save_pretrained(own)
        else:
            shutil.copy(shared / "config.json", own / "config.json")
    return own


def save(runs: list[dict[str, Any]]) -> None:
    RECORD.write_text(json.dumps({"device": "cpu", "runs": runs}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
