"""Products in bf16: the results of autocast, with fewer copies of weights, inputs and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from heads import DROPOUT, build
from parts import batch_of, parts_of
from torch.utils._python_dispatch import TorchDispatchMode

from tightfit.ops.bf16_products import use_bf16_products
from tightfit.strategies.parts import Parts

FP32 = torch.float32


class Copies(TorchDispatchMode):
    """The shapes of what is copied from fp32 to bf16, and of products in bf16 that make a weight's gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.narrowed: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and (args[0].dtype, out.dtype) == (FP32, torch.bfloat16):
            self.narrowed.append(tuple(out.shape))
        return out


def backward(parts: Parts) -> dict[str, torch.Tensor]:
    """The gradients by name."""
    parts.model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = parts.model(**batch_of(parts, seed=0)).loss
    loss.backward()
    return {name: p.grad.clone() for name, p in parts.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("specs", [(), ("chunked-layers:size=2",)], ids=["whole batch", "chunks"])
def test_gradients_are_in_fp32_and_as_close_to_those_of_fp32_as_with_autocast(specs: tuple[str, ...]) -> None:
    exact = parts_of(*specs, model=build("Bert"))
    exact.model(**batch_of(exact, seed=0)).loss.backward()
    expected = torch.cat([p.grad.flatten() for p in exact.model.parameters()])
    errors = []
    for recipe in (specs, (*specs, "mixed-precision")):
        found = backward(parts_of(*recipe, model=build("Bert")))
        assert {gradient.dtype for gradient in found.values()} == {FP32}
        errors.append(float((torch.cat([g.flatten() for g in found.values()]) - expected).norm() / expected.norm()))
    autocast, ours = errors
    assert ours < 1.3 * autocast + 0.005


def test_queries_keys_and_values_share_their_input_and_chunks_their_weights() -> None:
    parts = parts_of("chunked-layers:size=2", "mixed-precision", model=build("Bert", **DROPOUT))
    with Copies() as copies:
        backward(parts)
    weight = tuple(parts.model.bert.encoder.layer[0].intermediate.dense.weight.shape)
    layers = len(parts.model.bert.encoder.layer)
    assert copies.narrowed.count(weight) == 2 * layers  # once for all chunks, and once for their recomputation


def test_the_copy_of_a_weight_is_made_again_after_each_update() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    use_bf16_products(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5, fused=True)  # which does not count versions
    states = torch.ones(2, 4, requires_grad=True)
    outputs = []
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            out = model(states)
        out.float().square().sum().backward()
        optimizer.step()
        outputs.append(out.detach().clone())
    assert not torch.equal(*outputs)


def test_frozen_weights_and_inputs_without_gradients() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 4))
    use_bf16_products(model)
    model[2].weight.requires_grad_(False)
    with torch.autocast("cpu", torch.bfloat16):
        out = model(torch.ones(2, 4))
    out.float().square().sum().backward()
    assert model[0].weight.grad is not None
    assert model[2].weight.grad is None
    assert model[2].bias.grad is not None


def test_without_autocast_nothing_changes() -> None:
    model, states = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4)), torch.ones(2, 4)
    expected = model(states)
    use_bf16_products(model)
    assert torch.equal(model(states), expected)
