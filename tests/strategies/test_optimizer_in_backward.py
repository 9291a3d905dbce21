"""Parameters are stepped when their gradients arrive, and nothing is kept alive by that."""

from __future__ import annotations

import copy
import gc
import weakref
from dataclasses import replace
from typing import Any

import torch
from parts import batch_of, parts_of

from tightfit.engine.assembly import build_optimizer
from tightfit.optimizers.in_backward import forget_norms

LIMIT = 1e-3  # far below what the gradients' norm is


def test_every_parameter_moves_and_no_gradient_is_left() -> None:
    parts = parts_of("adafactor", "optimizer-in-backward")
    optimizer = build_optimizer(parts)
    before = {name: p.detach().clone() for name, p in parts.model.named_parameters()}
    parts.model(**batch_of(parts, 1)).loss.backward()
    used = [name for name, p in parts.model.named_parameters() if not torch.equal(p, before[name])]
    assert len(used) > len(before) / 2
    assert all(p.grad is None for p in parts.model.parameters())
    assert len(optimizer.state) == len(used)


def test_the_model_goes_with_its_last_name() -> None:
    parts = parts_of("adafactor", "optimizer-in-backward")
    optimizer = build_optimizer(parts)
    parts.model(**batch_of(parts, 1)).loss.backward()
    model, weight = weakref.ref(parts.model), weakref.ref(next(parts.model.parameters()))
    del parts, optimizer
    gc.collect()
    assert model() is None
    assert weight() is None


class Seen(torch.optim.Optimizer):
    """Moves nothing and remembers the gradients it was given."""

    def __init__(self, groups: Any, lr: float) -> None:
        super().__init__(groups, {"lr": lr})
        self.gradients: dict[torch.Tensor, torch.Tensor] = {}

    def step(self, closure: Any = None) -> None:
        for parameter in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            self.gradients[parameter] = parameter.grad.clone()


def watched(limit: float) -> tuple[Any, Seen, dict[str, torch.Tensor]]:
    """A model whose gradients are clipped on arrival, and one whole batch for it."""
    torch.manual_seed(0)
    parts = replace(parts_of("optimizer-in-backward"), optimizer=Seen, max_grad_norm=limit)
    parts.model.eval()  # no dropout: every pass brings the same gradients
    optimizer = build_optimizer(parts)
    assert isinstance(optimizer, Seen)
    return parts.model, optimizer, batch_of(parts, 1)


def test_when_all_norms_are_known_gradients_are_clipped_as_torch_clips_them() -> None:
    model, optimizer, batch = watched(LIMIT)
    model(**batch).loss.backward()
    first = dict(optimizer.gradients)
    model(**batch).loss.backward()
    plain, unclipped, batch = watched(0)
    plain(**batch).loss.backward()
    for parameter, gradient in unclipped.gradients.items():
        parameter.grad = gradient
    torch.nn.utils.clip_grad_norm_(plain.parameters(), LIMIT)
    names = {p: name for name, p in model.named_parameters()}
    expected = {name: p.grad for name, p in plain.named_parameters()}
    for parameter, gradient in optimizer.gradients.items():
        torch.testing.assert_close(gradient, expected[names[parameter]])
    *_, last = first
    torch.testing.assert_close(first[last], expected[names[last]])
    assert sum(g.square().sum() for g in first.values()) > LIMIT**2  # the first to come knew of nobody else


def test_norms_are_saved_and_loaded_and_can_be_forgotten() -> None:
    model, optimizer, batch = watched(LIMIT)
    model(**batch).loss.backward()
    saved = copy.deepcopy(optimizer.state_dict())
    model(**batch).loss.backward()
    expected = dict(optimizer.gradients)
    forget_norms(optimizer)
    model(**batch).loss.backward()
    differ = [p for p in expected if not torch.equal(optimizer.gradients[p], expected[p])]
    assert differ
    optimizer.load_state_dict(saved)
    model(**batch).loss.backward()
    assert all(torch.equal(optimizer.gradients[p], expected[p]) for p in expected)
