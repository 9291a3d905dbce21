"""The parts of a tiny training run with strategies applied, and batches for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from heads import build, make_batch

from tightfit.data.batching import Batching
from tightfit.data.micro_batches import micro_batches
from tightfit.device import Device, find_device
from tightfit.strategies import STRATEGIES
from tightfit.strategies.adamw import AdamW
from tightfit.strategies.parts import Parts
from tightfit.strategies.recipe import Recipe

CPU = find_device("cpu")
GPU = Device("cuda", "a GPU simulated on the CPU", bf16=True, fp16=False, capability=86)
OFFLOADING = ("offload-activations", "offload-optimizer")  # only a GPU has memory of its own
ROWS, LENGTH = 8, 24


def skip_unless_installed(name: str) -> None:
    if not STRATEGIES[name].is_available():
        pytest.skip(f"{name} needs the package {STRATEGIES[name].requires}")


def sorted_batch(longest: int = 20) -> dict[str, torch.Tensor]:
    """A batch with the longest rows first."""
    return next(micro_batches(make_batch(ROWS, longest=longest), ROWS, sort=True))[1]


def parts_of(*specs: str, model: Any = None) -> Parts:
    """Parts on the CPU; the device is declared a GPU if a strategy needs one."""
    strategies = Recipe.parse(specs).in_order_of_application
    parts = Parts(
        model=build("Bert") if model is None else model,
        device=GPU if any(strategy.name in OFFLOADING for strategy in strategies) else CPU,
        optimizer=AdamW().build,
        batching=Batching(ROWS, LENGTH),
        learning_rate=2e-3,
        weight_decay=0.01,
        max_grad_norm=1.0,
    )
    for strategy in strategies:
        skip_unless_installed(strategy.name)
        parts = strategy.apply(parts)
    return parts


def batch_of(parts: Parts, seed: int) -> dict[str, torch.Tensor]:
    head = "sequence" if parts.model.get_output_embeddings() is None else "masked"
    batch = make_batch(ROWS, head, longest=LENGTH, seed=seed)
    return {key: value[:, : parts.batching.max_length] if value.dim() == 2 else value for key, value in batch.items()}
