"""Parameters are updated when their gradients are complete, without keeping the model alive."""

from __future__ import annotations

import copy
import gc
import weakref
from dataclasses import replace
from typing import Any

import torch
from parts import batch_of, parts_of

from tightfit.engine.assembly import build_optimizer
from tightfit.optimizers.in_backward import reset_grad_norms

LIMIT = 1e-3  # far below the norm of the gradients


def test_parameters_are_updated_and_gradients_freed() -> None:
    parts = parts_of("adafactor", "optimizer-in-backward")
    optimizer = build_optimizer(parts)
    before = {name: p.detach().clone() for name, p in parts.model.named_parameters()}
    parts.model(**batch_of(parts, 1)).loss.backward()
    used = [name for name, p in parts.model.named_parameters() if not torch.equal(p, before[name])]
    assert len(used) > len(before) / 2
    assert all(p.grad is None for p in parts.model.parameters())
    assert len(optimizer.state) == len(used)


def test_the_model_is_freed_with_its_last_reference() -> None:
    parts = parts_of("adafactor", "optimizer-in-backward")
    optimizer = build_optimizer(parts)
    parts.model(**batch_of(parts, 1)).loss.backward()
    model, weight = weakref.ref(parts.model), weakref.ref(next(parts.model.parameters()))
    del parts, optimizer
    gc.collect()
    assert model() is None
    assert weight() is None


class RecordGradients(torch.optim.Optimizer):
    """An optimizer that updates nothing and records its gradients."""

    def __init__(self, groups: Any, lr: float) -> None:
        super().__init__(groups, {"lr": lr})
        self.gradients: dict[torch.Tensor, torch.Tensor] = {}

    def step(self, closure: Any = None) -> None:
        for parameter in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            self.gradients[parameter] = parameter.grad.clone()


def recording(limit: float) -> tuple[Any, RecordGradients, dict[str, torch.Tensor]]:
    """A model whose gradients are clipped in the backward pass, its optimizer, and a batch for it."""
    torch.manual_seed(0)
    parts = replace(parts_of("optimizer-in-backward"), optimizer=RecordGradients, max_grad_norm=limit)
    parts.model.eval()  # no dropout: every pass computes the same gradients
    optimizer = build_optimizer(parts)
    assert isinstance(optimizer, RecordGradients)
    return parts.model, optimizer, batch_of(parts, 1)


def test_with_all_norms_known_clipping_equals_that_of_torch() -> None:
    model, optimizer, batch = recording(LIMIT)
    model(**batch).loss.backward()
    first = dict(optimizer.gradients)
    model(**batch).loss.backward()
    baseline, unclipped, batch = recording(0)
    baseline(**batch).loss.backward()
    for parameter, gradient in unclipped.gradients.items():
        parameter.grad = gradient
    torch.nn.utils.clip_grad_norm_(baseline.parameters(), LIMIT)
    names = {p: name for name, p in model.named_parameters()}
    expected = {name: p.grad for name, p in baseline.named_parameters()}
    for parameter, gradient in optimizer.gradients.items():
        torch.testing.assert_close(gradient, expected[names[parameter]])
    *_, last = first
    torch.testing.assert_close(first[last], expected[names[last]])
    assert (
        sum(g.square().sum() for g in first.values()) > LIMIT**2
    )  # the first gradients were clipped without the norms of the others


def test_norms_are_saved_and_loaded_and_can_be_reset() -> None:
    model, optimizer, batch = recording(LIMIT)
    model(**batch).loss.backward()
    saved = copy.deepcopy(optimizer.state_dict())
    model(**batch).loss.backward()
    expected = dict(optimizer.gradients)
    reset_grad_norms(optimizer)
    model(**batch).loss.backward()
    differ = [p for p in expected if not torch.equal(optimizer.gradients[p], expected[p])]
    assert differ
    optimizer.load_state_dict(saved)
    model(**batch).loss.backward()
    assert all(torch.equal(optimizer.gradients[p], expected[p]) for p in expected)
