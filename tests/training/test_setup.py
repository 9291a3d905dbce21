"""Optimizer state and checkpoint sizes, predicted on fake tensors."""

from __future__ import annotations

import pytest
import torch
from parts import batch_of, parts_of

from tightfit.engine.assembly import build_optimizer
from tightfit.training.setup import checkpoint_bytes, optimizer_bytes


@pytest.mark.parametrize("use", ["adamw", "adamw:fused=false", "adafactor", "freeze"])
def test_predicted_optimizer_state_equals_the_real_one(use: str) -> None:
    parts = parts_of(use)
    predicted = optimizer_bytes(parts)
    optimizer = build_optimizer(parts)
    parts.model(**batch_of(parts, 0)).loss.backward()
    optimizer.step()
    state = [value for values in optimizer.state.values() for value in values.values()]
    assert predicted == sum(value.nbytes for value in state if isinstance(value, torch.Tensor)) > 0


def test_a_checkpoint_holds_only_trained_weights() -> None:
    sizes = {}
    for use in ("adamw", "lora", "freeze"):
        parts = parts_of(use)
        sizes[use] = checkpoint_bytes(parts, build_optimizer(parts))
        saved = parts.parameters if use == "adamw" else parts.trainable_parameters
        assert sizes[use] == pytest.approx(4 * saved, rel=0.05), "there is no optimizer state yet"
    assert sizes["lora"] < sizes["adamw"] / 4
