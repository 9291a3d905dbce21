"""Predicted GPU memory beside that of torch's own allocator, on fake GPUs: live and reserved bytes, phase by phase.

A cell is a recipe on a model on a GPU of some capability. It is trained for two steps by the code that trains on a real
GPU, with the CUDA build of torch; only the kernels do not run (fake_gpu/README.md). The models have two layers of real
width. Run by `make bench-gpu`. Writes records/gpu.json.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fake_gpu import FakeGPU, is_active  # noqa: E402

RECORD = ROOT / "records" / "gpu.json"
CAPABILITIES = {"7.5": "GTX 1650", "8.6": "RTX 3050", "9.0": "H100"}
LAYERS, VOCABULARY, BATCH, LENGTH = 2, 8192, 32, 128
WIDTHS: dict[str, dict[str, Any]] = {
    "Bert": {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
    "Roberta": {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
    "Albert": {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "embedding_size": 128},
    "GPT2": {"hidden_size": 768, "num_attention_heads": 12, "n_embd": 768, "n_head": 12},
    "Qwen2": {"hidden_size": 896, "num_attention_heads": 14, "num_key_value_heads": 2, "intermediate_size": 4864},
    "Llama": {"hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 4, "intermediate_size": 2816},
}
PRECISIONS = {"fp32": (), "fp16": ("mixed-precision:dtype=fp16",), "bf16": ("mixed-precision:dtype=bf16",)}
RECIPES = (
    "",
    "adamw:fused=false",
    "tiled-attention",
    "micro-batch:size=4",
    "micro-batch:tokens=1024",
    "gradient-checkpointing",
    "chunked-layers:size=4",
    "length-bucketing",
    "offload-activations",
    "adamw-16bit",
    "adamw-8bit",
    "adafactor",
    "bf16-weights",
    "offload-optimizer",
    "optimizer-in-backward",
    "lora",
    "freeze:cache=false",
    "max-length:tokens=64",
    "tiled-attention chunked-layers:size=4 adafactor optimizer-in-backward",
    "micro-batch:size=4 gradient-checkpointing adamw-16bit",
    "micro-batch:size=4 gradient-checkpointing offload-optimizer adafactor",
)
PHASES = ("load", "features", "forward", "backward", "step", "evaluate", "save", "load-best")


@dataclass(frozen=True)
class Cell:
    """What is trained where."""

    model: str
    recipe: str
    precision: str
    capability: str

    @property
    def specs(self) -> list[str]:
        return [*self.recipe.split(), *PRECISIONS[self.precision]]


def cells() -> Iterator[Cell]:
    """Every recipe in every precision, on models and capabilities in turn; every model in every precision on each."""
    models = list(WIDTHS)
    chosen = {
        Cell(models[(number + turn) % len(models)], recipe, precision, _capability(recipe, precision, number + turn))
        for number, recipe in enumerate(RECIPES)
        for turn, precision in enumerate(PRECISIONS)
    }
    chosen |= {
        Cell(model, "", precision, where) for model in models for precision in PRECISIONS for where in CAPABILITIES
    }
    yield from (cell for cell in sorted(chosen, key=lambda c: list(asdict(c).values())) if _is_possible(cell))


def _capability(recipe: str, precision: str, number: int) -> str:
    """bf16 needs capability 8.0."""
    able = [name for name in CAPABILITIES if name > "8" or not (precision == "bf16" or "bf16-weights" in recipe)]
    return able[number % len(able)]


def _is_possible(cell: Cell) -> bool:
    """bf16 needs capability 8.0; a recipe has one number format."""
    needs_bf16 = cell.precision == "bf16" or "bf16-weights" in cell.recipe
    return not (needs_bf16 and cell.capability < "8") and not (
        "bf16-weights" in cell.recipe and cell.precision != "fp32"
    )


# In a process that sees a fake GPU


def measure(cell: Cell, folder: Path) -> dict[str, Any]:
    """Train a cell; bytes predicted and measured by phase."""

    from tightfit import Job, train
    from tightfit.engine.meter import CudaProbe

    CudaProbe.allocated_peak = lambda probe: requested_peak()  # type: ignore[method-assign]
    reset_gpu()
    data = _texts(folder / "texts.csv")
    job = Job(
        model=str(_model(folder / "model", cell.model)),
        data=str(data),
        batch_size=BATCH,
        max_length=LENGTH,
        max_steps=2,
        random_weights=True,
    )
    run = train(job, cell.specs, out=folder / "run", device="cuda", quiet=True, measure_only=True)
    estimate = json.loads((folder / "run" / "start.json").read_text(encoding="utf-8"))["estimate"]
    live = run.measured.allocated_phases or {}
    phases = {}
    for name in PHASES:
        if name in estimate["phases"] and name in live:
            kinds = estimate["phases"][name]
            reserved = sum(kinds.values())
            phases[name] = {
                "live": [reserved - kinds.get("allocator", 0), live[name]],
                "reserved": [reserved, run.measured.phases[name]],
            }
    return {"phases": phases, "kinds": estimate["phases"]}


def reset_gpu() -> None:
    """As at the start of a process: nothing allocated, no workspaces."""
    import torch

    gc.collect()
    torch.cuda.init()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def requested_peak() -> int:
    """The most bytes that tensors asked for: what torch calls allocated includes what its blocks have too much."""
    import torch

    return torch.cuda.memory_stats()["requested_bytes.all.peak"]


def _texts(path: Path) -> Path:
    """Texts of 20 to 140 words, so that some are cut and most batches have padding."""
    from conftest import FILLER

    picker = random.Random(0)
    lines = [f"{row % 2},{' '.join(picker.choices(FILLER, k=picker.randint(20, 140)))} {row}" for row in range(150)]
    path.write_text("\n".join(["label,text", *lines]) + "\n", encoding="utf-8")
    return path


def _model(folder: Path, name: str) -> Path:
    from conftest import BAD, FILLER, GOOD
    from heads import small_config
    from transformers import BertTokenizerFast

    folder.mkdir(parents=True)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *GOOD, *BAD, *FILLER]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "attn_pdrop": 0.1, "resid_pdrop": 0.1}
    sizes = {"vocab_size": VOCABULARY, "max_position_embeddings": 512, **WIDTHS[name]}
    config = small_config(name, LAYERS, **dropout, **sizes)
    config.architectures = [type(config).__name__.replace("Config", "ForSequenceClassification")]
    config.save_pretrained(folder)
    return folder


def run_here(wanted: list[Cell]) -> None:
    """Measure cells in this process; a line of JSON for each."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory() as name:
        os.environ["HF_DATASETS_CACHE"] = str(Path(name) / "rows")
        for number, cell in enumerate(wanted):
            start = time.perf_counter()
            folder = Path(name) / str(number)
            folder.mkdir()
            try:
                result = measure(cell, folder)
            except Exception as error:  # one cell that fails must not end the others
                traceback.print_exc()
                result = {"error": f"{type(error).__name__}: {error}"}
            seconds = round(time.perf_counter() - start, 1)
            print("CELL " + json.dumps({**asdict(cell), **result, "seconds": seconds}), flush=True)


# In a process that does not


def run_on(capability: str, wanted: list[Cell], *, memory: int = 64 << 30) -> Iterator[dict[str, Any]]:
    """Measure cells in a process of their own that sees a fake GPU."""
    gpu = FakeGPU(memory=memory, capability=capability, name=CAPABILITIES[capability])
    command = [sys.executable, __file__, "--here", json.dumps([asdict(cell) for cell in wanted])]
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    environment = os.environ | gpu.environment() | {"PYTHONPATH": path}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            if line.startswith("CELL "):
                yield json.loads(line.removeprefix("CELL "))


def error(pair: list[int]) -> float:
    """How much more was predicted than measured, as a share."""
    predicted, measured = pair
    return predicted / measured - 1


def peak(result: dict[str, Any], what: str) -> list[int]:
    """The largest phase, predicted and measured."""
    return [max(phase[what][which] for phase in result["phases"].values()) for which in (0, 1)]


def describe(result: dict[str, Any]) -> str:
    """One line: the errors of the peaks, and the phases whose live bytes differ by more than 0.1 %."""
    name = f"{result['capability']} {result['precision']} {result['model']:8}{result['recipe']:40}"
    if "error" in result:
        return f"{name} {result['error'][:150]}"
    off = {n: f"{error(p['live']):+.1%}" for n, p in result["phases"].items() if abs(error(p["live"])) > 0.001}
    return f"{name} live {error(peak(result, 'live')):+.2%} reserved {error(peak(result, 'reserved')):+.2%} {off}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--here", type=json.loads, help="used by this script: cells to measure in this process")
    parser.add_argument("--only", default="", help="cells whose description contains all of these words")
    parser.add_argument("--record", type=Path, default=RECORD)
    given = parser.parse_args()
    if given.here is not None:
        assert is_active(), "measured on fake GPUs only"
        run_here([Cell(**cell) for cell in given.here])
        return
    wanted = [
        c
        for c in cells()
        if all(w in f"{c.model} [{c.recipe}] {c.precision} {c.capability}" for w in given.only.split(";"))
    ]
    import torch

    results = []
    for capability in CAPABILITIES:
        here = [cell for cell in wanted if cell.capability == capability]
        for result in run_on(capability, here) if here else ():
            print(describe(result), flush=True)
            results.append({name: value for name, value in result.items() if name != "kinds"})
            record = {"torch": torch.__version__, "cells": results}
            given.record.write_text(json.dumps(record).replace('{"model"', '\n{"model"') + "\n", "utf-8")


if __name__ == "__main__":
    main()
