"""Offloaded tensors come back unchanged, and the same memory is copied once."""

from __future__ import annotations

import contextlib

import pytest
import torch
from heads import CONFIGS, DROPOUT, build, gradients
from parts import CPU, batch_of, parts_of

from tightfit.engine.micro_batch_loss import model_loss, weighted_micro_batches
from tightfit.engine.step import train_batch
from tightfit.errors import RecipeError
from tightfit.ops import offload
from tightfit.strategies.offload_activations import OffloadActivations
from tightfit.strategies.recipe import Recipe


def gradients_of(architecture: str, *specs: str) -> torch.Tensor:
    torch.manual_seed(3)
    parts = parts_of(*specs, model=build(architecture, **(DROPOUT if architecture == "Bert" else {})))
    batch = batch_of(parts, seed=1)
    weighted = weighted_micro_batches(parts.model, batch, parts.step_batching.limits(), sort=parts.batching.sorts)
    torch.manual_seed(4)
    train_batch(parts.model, weighted, model_loss, torch.Tensor.backward, lambda _: contextlib.nullcontext())
    return gradients(parts.model)


@pytest.mark.parametrize("architecture", CONFIGS)
@pytest.mark.parametrize("others", ["", "gradient-checkpointing", "chunked-layers:size=2", "micro-batch:size=3 lora"])
def test_gradients_are_bit_identical(architecture: str, others: str) -> None:
    without, offloaded = (
        gradients_of(architecture, *others.split(), *more) for more in ([], ["offload-activations:smallest=0"])
    )
    assert torch.equal(without, offloaded)


def test_the_same_memory_is_copied_to_the_host_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    to_host = offload.to_host
    monkeypatch.setattr(offload, "to_host", lambda tensor: sent.append(tensor.numel()) or to_host(tensor))
    layer = torch.nn.Linear(8, 8, bias=False)
    x = torch.randn(4, 5, 8, requires_grad=True)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x * 2
            return self.layer(x) + self.layer(x.view(20, 8)).view(4, 5, 8) + x.exp()

    model = Model()
    offload.offload_saved_tensors(model, 0)
    out = model(x)
    assert sorted(sent) == [160, 160]  # x, once for both layers, and the output of exp(); no weight
    out.sum().backward()
    assert x.grad is not None


def test_memory_written_to_in_between_is_copied_again(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = torch.randn(64, requires_grad=True), torch.ones(64)

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scale = w.clone()
            first = x * scale
            scale.mul_(3)
            return first + x * scale

    model = Model()
    offload.offload_saved_tensors(model, 0)
    model(x).sum().backward()
    assert torch.equal(x.grad, torch.full((64,), 4.0))


def test_activations_are_not_offloaded_on_a_cpu() -> None:
    parts = parts_of()
    assert parts.device == CPU
    with pytest.raises(RecipeError, match=r"only a GPU has memory separate from host memory\. Leave it out\.$"):
        OffloadActivations().apply(parts)
    assert Recipe.parse(["offload-activations"]).result.value == "same"
