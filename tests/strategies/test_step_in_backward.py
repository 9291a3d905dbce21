"""Parameters are stepped when their gradients arrive, and nothing is kept alive by that."""

from __future__ import annotations

import gc
import weakref

import torch
from parts import batch_of, parts_of

from tightfit.assembly import build_optimizer


def test_every_parameter_moves_and_no_gradient_is_left() -> None:
    parts = parts_of("adafactor", "step-in-backward")
    optimizer = build_optimizer(parts)
    before = {name: p.detach().clone() for name, p in parts.model.named_parameters()}
    parts.model(**batch_of(parts, 1)).loss.backward()
    used = [name for name, p in parts.model.named_parameters() if not torch.equal(p, before[name])]
    assert len(used) > len(before) / 2
    assert all(p.grad is None for p in parts.model.parameters())
    assert len(optimizer.state) == len(used)


def test_the_model_goes_with_its_last_name() -> None:
    parts = parts_of("adafactor", "step-in-backward")
    optimizer = build_optimizer(parts)
    parts.model(**batch_of(parts, 1)).loss.backward()
    model, weight = weakref.ref(parts.model), weakref.ref(next(parts.model.parameters()))
    del parts, optimizer
    gc.collect()
    assert model() is None
    assert weight() is None
