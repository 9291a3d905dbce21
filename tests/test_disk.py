"""The optimizer's bytes, foretold without stepping it for real."""

from __future__ import annotations

import pytest
import torch
from parts import batch_of, parts_of

from tightfit.assembly import build_optimizer
from tightfit.disk import optimizer_bytes


@pytest.mark.parametrize("use", ["adamw", "adamw:fused=false", "adafactor", "freeze"])
def test_foretold_equals_found(use: str) -> None:
    parts = parts_of(use)
    foretold = optimizer_bytes(parts)
    optimizer = build_optimizer(parts)
    parts.model(**batch_of(parts, 0)).loss.backward()
    optimizer.step()
    state = [value for values in optimizer.state.values() for value in values.values()]
    assert foretold == sum(value.nbytes for value in state if isinstance(value, torch.Tensor)) > 0
