"""Memory and op counts of every recipe on small models: bytes by phase and kind, ops by kind; no process size."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from heads import small_config
from parts import CPU

from tightfit import Job
from tightfit.data.labels import Labels
from tightfit.device import GPUS, Device
from tightfit.errors import RecipeError
from tightfit.simulation.job_simulation import Simulation, SimulationSetup
from tightfit.simulation.op_counts import OpCounts
from tightfit.simulation.worst_case import Lengths
from tightfit.strategies.recipe import Recipe

FILE = Path(__file__).parent / "estimates.json"
DEVICES = {"cpu": replace(CPU, bf16_products=True), "gpu": GPUS["T4 16GB"]}  # the same on every machine
SHAPES: dict[str, dict[str, Any]] = {
    "Bert, 6 layers, 16 rows of 48": {"architecture": "Bert", "layers": 6, "batch_size": 16, "max_length": 48},
    "DistilBert, 5 layers, 12 rows of 40": {
        "architecture": "DistilBert",
        "layers": 5,
        "batch_size": 12,
        "max_length": 40,
    },
    "GPT2, 4 layers, 8 rows of 32": {"architecture": "GPT2", "layers": 4, "batch_size": 8, "max_length": 32},
}
RECIPES = (
    "",
    "adamw:fused=false",
    "micro-batch:size=4",
    "micro-batch:tokens=96",
    "tiled-attention",
    "gradient-checkpointing",
    "gradient-checkpointing:every=2",
    "chunked-layers:size=4",
    "chunked-layers:size=2,layers=2 adafactor optimizer-in-backward",
    "tiled-attention chunked-layers:size=4 length-bucketing adafactor optimizer-in-backward",
    "tiled-attention micro-batch:tokens=128 gradient-checkpointing adamw-16bit",
    "length-bucketing adafactor",
    "micro-batch:size=4 gradient-checkpointing adafactor",
    "mixed-precision",
    "mixed-precision gradient-checkpointing micro-batch:size=4",
    "bf16-weights",
    "bf16-weights adafactor optimizer-in-backward",
    "adamw-8bit",
    "adamw-16bit optimizer-in-backward",
    "offload-optimizer",
    "offload-optimizer adamw-16bit",
    "offload-activations",
    "lora",
    "lora gradient-checkpointing micro-batch:size=4",
    "freeze",
    "freeze:layers=2",
    "freeze:cache=false micro-batch:size=4",
    "max-length:tokens=16",
    "max-length:tokens=16 micro-batch:size=4 adafactor",
)


def compute(shape: str, device: str) -> dict[str, Any]:
    """The golden values of every recipe for one model on one device."""
    with tempfile.TemporaryDirectory() as folder:
        simulated = _simulation(Path(folder), DEVICES[device], **SHAPES[shape])
        return {recipe: _values(simulated, recipe) for recipe in RECIPES}


def _simulation(
    folder: Path, device: Device, architecture: str, layers: int, batch_size: int, max_length: int
) -> Simulation:
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "dropout": 0.1, "attn_pdrop": 0.1}
    small_config(architecture, layers, **dropout).save_pretrained(folder)
    job = Job(model=str(folder), data="none", batch_size=batch_size, max_length=max_length, random_weights=True)
    train, validation = (
        [3 + 7 * row % (max_length - 2) for row in range(10 * batch_size)],
        [5 + row for row in range(20)],
    )
    tokenizer: Any = SimpleNamespace(pad_token_id=0)
    setup = SimulationSetup.of(job, device, Labels(("a", "b", "c")), tokenizer)
    return Simulation(setup, Lengths.of(job, train, validation), overhead=0)


def _values(simulated: Simulation, recipe: str) -> dict[str, Any]:
    parsed = Recipe.parse(recipe.split())
    try:
        estimate, (traced, _) = simulated.estimate(parsed), simulated.traced(parsed)
    except RecipeError:
        return {"rejected": True}
    training = traced.training
    return {
        "phases": {name: {kind.value: size for kind, size in kinds.items()} for name, kinds in estimate.phases.items()},
        "host": estimate.host,
        "parameters": [estimate.parameters, estimate.trainable_parameters],
        "operations": _totals(training.op_counts),
        "optimizer operations": _totals(training.optimizer_op_counts),
    }


def _totals(parts: tuple[tuple[int, OpCounts], ...]) -> dict[str, list[float]]:
    """Cost and calls of each op kind, summed over all sections."""
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for weight, counts in parts:
        for kind, amount, calls in zip(counts.kinds, counts.costs, counts.calls, strict=True):
            totals[kind][0] += weight * amount
            totals[kind][1] += weight * calls
    return {kind: totals[kind] for kind in sorted(totals)}


def cases() -> Iterator[tuple[str, str]]:
    return ((shape, device) for shape in SHAPES for device in DEVICES)


def load() -> dict[str, Any]:
    return json.loads(FILE.read_text(encoding="utf-8"))


def write() -> None:
    values = {f"{shape}, {device}": compute(shape, device) for shape, device in cases()}
    text = json.dumps({"torch": torch.__version__.partition("+")[0], "estimates": values}, separators=(",", ":"))
    FILE.write_text(text.replace('},"', '},\n"') + "\n", encoding="utf-8")
