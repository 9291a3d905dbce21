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
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fake_gpu import FakeGPU, is_active  # noqa: E402

RECORD = ROOT / "records" / "gpu.json"
PROCESSES, CELLS_PER_PROCESS = 2, 25
CAPABILITIES = {"7.5": "GTX 1650", "8.6": "RTX 3050", "9.0": "H100"}
BF16 = 80
LAYERS, VOCABULARY, BATCH, LENGTH = 2, 8192, 32, 128
WIDTHS: dict[str, dict[str, Any]] = {
    "Bert": {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
    "Roberta": {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
    "Albert": {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "embedding_size": 128},
    "GPT2": {"hidden_size": 768, "num_attention_heads": 12, "n_embd": 768, "n_head": 12},
    "Qwen2": {"hidden_size": 896, "num_attention_heads": 14, "num_key_value_heads": 2, "intermediate_size": 4864},
    "Llama": {"hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 4, "intermediate_size": 2816},
}
DECODERS = ("GPT2", "Qwen2", "Llama")
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
    "freeze:layers=1,cache=false",
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
    expandable: bool = True
    """Whether the allocator's segments are expandable, as training switches them on, or as torch has them."""

    @property
    def specs(self) -> list[str]:
        return [*self.recipe.split(), *PRECISIONS[self.precision]]


def cells() -> list[Cell]:
    """Every recipe on every model, precisions and GPUs in turn; every model in every precision on every GPU.

    Then each recipe and each model once more, with the allocator's segments as torch has them.
    """
    models, found = list(WIDTHS), set()
    for number, recipe in enumerate(RECIPES):
        precisions = [name for name in PRECISIONS if _is_possible(recipe, name)]
        for turn, model in enumerate(models):
            precision = precisions[(number + turn) % len(precisions)]
            able = [name for name in CAPABILITIES if _is_able(name, recipe, precision)]
            found.add(Cell(model, recipe, precision, able[(number + turn // 3 + turn) % len(able)]))
        able = [name for name in CAPABILITIES if _is_able(name, recipe, precisions[-1])]
        found.add(
            Cell(models[number % len(models)], recipe, precisions[-1], able[number % len(able)], expandable=False)
        )
    for number, model in enumerate(models):
        for precision in PRECISIONS:
            able = [name for name in CAPABILITIES if _is_able(name, "", precision)]
            found |= {Cell(model, "", precision, capability) for capability in able}
            found.add(Cell(model, "", precision, able[number % len(able)], expandable=False))
    return sorted(found, key=lambda cell: [str(value) for value in asdict(cell).values()])


def _is_possible(recipe: str, precision: str) -> bool:
    """A recipe has one number format; a gradient scaler needs all gradients before the first update."""
    return precision == "fp32" or (
        "bf16-weights" not in recipe and not (precision == "fp16" and "in-backward" in recipe)
    )


def _is_able(capability: str, recipe: str, precision: str) -> bool:
    """bf16 needs capability 8.0."""
    return capability > "8" or not (precision == "bf16" or "bf16-weights" in recipe)


# In a process that sees a fake GPU


def measure(cell: Cell, folder: Path) -> dict[str, Any]:
    """Train a cell; bytes predicted and measured by phase."""
    import torch
    from gpu.host_values import host_values

    from tightfit import train
    from tightfit.engine.meter import CudaProbe

    CudaProbe.allocated_peak = lambda probe: requested_peak()  # type: ignore[method-assign]
    reset_gpu()
    torch.backends.cuda.enable_cudnn_sdp(False)  # cuDNN needs a real driver
    job = _job(cell, folder)
    with host_values():
        run = train(job, cell.specs, out=folder / "run", device="cuda", quiet=True, measure_only=True)
    estimate = json.loads((folder / "run" / "start.json").read_text(encoding="utf-8"))["estimate"]
    live = run.measured.allocated_phases or {}
    phases = {
        name: {"live": [0, live[name]], "reserved": [0, run.measured.phases[name]]}
        for name in PHASES
        if name in estimate["phases"] and name in live
    }
    return {"phases": _with_predicted(phases, estimate["phases"])}


def _with_predicted(phases: dict[str, Any], predicted: dict[str, dict[str, int]]) -> dict[str, Any]:
    """The phases with what the simulation predicts beside what was measured."""
    found = {}
    for name, measured in phases.items():
        reserved = sum(predicted[name].values())
        live = reserved - predicted[name].get("allocator", 0)
        found[name] = {"live": [live, measured["live"][1]], "reserved": [reserved, measured["reserved"][1]]}
    return found


def predict_again(cell: Cell, phases: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The phases of a cell that was measured before, as the simulation predicts them now."""
    from tightfit.device import find_gpu
    from tightfit.simulation.job_simulation import Simulation
    from tightfit.strategies.recipe import Recipe

    os.environ["PYTORCH_ALLOC_CONF"] = f"expandable_segments:{cell.expandable}"
    some = find_gpu("64GB")
    assert some is not None
    capability = int(cell.capability.replace(".", ""))
    able = {"capability": capability, "bf16": capability >= BF16, "multiprocessors": FakeGPU().multiprocessors}
    simulation = Simulation.of(_job(cell, folder), replace(some, **able))
    return _with_predicted(phases, simulation.estimate(Recipe.parse(cell.specs)).to_json()["phases"])


def _job(cell: Cell, folder: Path) -> Any:
    from tightfit import Job

    return Job(
        model=str(_model(folder / "model", cell.model)),
        data=str(_texts(folder / "texts.csv")),
        batch_size=BATCH,
        max_length=LENGTH,
        max_steps=2,
        random_weights=True,
    )


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
    fields = ["input_ids", "attention_mask"] if name in DECODERS else ["input_ids", "token_type_ids", "attention_mask"]
    BertTokenizerFast(str(folder / "vocab.txt"), model_input_names=fields).save_pretrained(folder)
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


def run_all(wanted: list[Cell]) -> Iterator[dict[str, Any]]:
    """Measure cells, two processes side by side; each process measures some cells of one GPU."""
    kinds: dict[tuple[str, bool], list[Cell]] = {}
    for cell in wanted:
        kinds.setdefault((cell.capability, cell.expandable), []).append(cell)
    parts = [
        cells[start : start + CELLS_PER_PROCESS]
        for cells in kinds.values()
        for start in range(0, len(cells), CELLS_PER_PROCESS)
    ]
    with ThreadPoolExecutor(PROCESSES) as pool:
        for done in as_completed([pool.submit(run_apart, part) for part in parts]):
            yield from done.result()


def run_apart(wanted: list[Cell], *, memory: int = 64 << 30) -> list[dict[str, Any]]:
    """Measure cells of one GPU in a process of their own that sees it."""
    first = wanted[0]
    gpu = FakeGPU(memory=memory, capability=first.capability, name=CAPABILITIES[first.capability])
    command = [sys.executable, __file__, "--here", json.dumps([asdict(cell) for cell in wanted])]
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    settings = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    if not first.expandable:
        settings["PYTORCH_ALLOC_CONF"] = "expandable_segments:False"
    results = []
    with subprocess.Popen(
        command, env=os.environ | gpu.environment() | settings, stdout=subprocess.PIPE, text=True
    ) as process:
        for line in process.stdout or ():
            if line.startswith("CELL "):
                results.append(json.loads(line.removeprefix("CELL ")))
                print(describe(results[-1]), flush=True)
    return results


def error(pair: list[int]) -> float:
    """How much more was predicted than measured, as a share."""
    predicted, measured = pair
    return predicted / measured - 1


def peak(result: dict[str, Any], what: str) -> list[int]:
    """The largest phase, predicted and measured."""
    return [max(phase[what][which] for phase in result["phases"].values()) for which in (0, 1)]


def describe(result: dict[str, Any]) -> str:
    """One line: the errors of the peaks, and the phases whose live bytes differ by more than 0.1 %."""
    where = f"{result['capability']}{'' if result['expandable'] else ' fixed'}"
    name = f"{where} {result['precision']} {result['model']:8}{result['recipe']:40}"
    if "error" in result:
        return f"{name} {result['error'][:150]}"
    off = {n: f"{error(p['live']):+.1%}" for n, p in result["phases"].items() if abs(error(p["live"])) > 0.001}
    return f"{name} live {error(peak(result, 'live')):+.2%} reserved {error(peak(result, 'reserved')):+.2%} {off}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--here", type=json.loads, help="used by this script: cells to measure in this process")
    parser.add_argument(
        "--only",
        default="",
        help="measure again the cells whose description contains all of these, separated by semicolons",
    )
    parser.add_argument("--predict", action="store_true", help="predict the cells of the record again, measure none")
    parser.add_argument("--record", type=Path, default=RECORD)
    given = parser.parse_args()
    if given.here is not None:
        assert is_active(), "measured on fake GPUs only"
        run_here([Cell(**cell) for cell in given.here])
        return
    if given.predict:
        _write(given.record, _predicted_now(given.record))
        return
    wanted = [
        c
        for c in cells()
        if all(
            w in f"{c.model} [{c.recipe}] {c.precision} {c.capability}{'' if c.expandable else ' fixed'}"
            for w in given.only.split(";")
        )
    ]
    results = {} if not given.only else {_cell_of(old): old for old in json.loads(given.record.read_text())["cells"]}
    for result in run_all(wanted):
        results[_cell_of(result)] = result
    _write(given.record, results)


def _predicted_now(record: Path) -> dict[Cell, dict[str, Any]]:
    results = {_cell_of(old): old for old in json.loads(record.read_text("utf-8"))["cells"]}
    with ProcessPoolExecutor(PROCESSES) as pool:
        for number, (cell, found) in enumerate(zip(results, pool.map(_predict_result, results.values()), strict=True)):
            results[cell] = found
            print(number, describe(found), flush=True)
    return results


def _predict_result(old: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return old | {"phases": predict_again(_cell_of(old), old["phases"], Path(folder))}


def _write(path: Path, results: dict[Cell, dict[str, Any]]) -> None:
    record = {"torch": version("torch"), "cells": [results[cell] for cell in cells() if cell in results]}
    path.write_text(json.dumps(record).replace('{"model"', '\n{"model"') + "\n", "utf-8")


def _cell_of(result: dict[str, Any]) -> Cell:
    return Cell(**{field.name: result[field.name] for field in fields(Cell)})


if __name__ == "__main__":
    main()
