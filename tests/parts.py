"""The parts of a tiny training with some strategies on them, and batches for it."""

from __future__ import annotations

from typing import Any

import torch
from heads import build, make_batch

from tightfit.device import Device
from tightfit.recipe import Recipe
from tightfit.strategies.adamw import AdamW
from tightfit.strategy import Parts

CPU = Device("cpu", "this machine's CPU", bf16=True, fp16=False)
ROWS, LENGTH = 8, 24


def parts_of(*words: str, model: Any = None) -> Parts:
    parts = Parts(
        model=build("Bert") if model is None else model,
        device=CPU,
        optimizer=AdamW().build,
        batch_size=ROWS,
        max_length=LENGTH,
        learning_rate=2e-3,
        weight_decay=0.01,
        max_grad_norm=1.0,
        slice_rows=ROWS,
    )
    for strategy in Recipe.parse(words).strategies:
        parts = strategy.apply(parts)
    return parts


def batch_of(parts: Parts, seed: int) -> dict[str, torch.Tensor]:
    batch = make_batch(ROWS, longest=LENGTH, seed=seed)
    return {key: value[:, : parts.max_length] if value.dim() == 2 else value for key, value in batch.items()}
