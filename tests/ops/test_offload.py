"""What waits in host memory comes back as it was, once for all who ask."""

from __future__ import annotations

import contextlib

import pytest
import torch
from heads import CONFIGS, DROPOUT, build, gradients
from parts import CPU, batch_of, parts_of

from tightfit.engine.step import run_micro_batches, weighted_micro_batches
from tightfit.errors import RecipeError
from tightfit.ops import offload
from tightfit.strategies.offload_activations import OffloadActivations
from tightfit.strategies.recipe import Recipe


def gradients_of(architecture: str, *words: str) -> torch.Tensor:
    torch.manual_seed(3)
    parts = parts_of(*words, model=build(architecture, **(DROPOUT if architecture == "Bert" else {})))
    slices = weighted_micro_batches(
        parts.model, batch_of(parts, seed=1), parts.slices, sort=parts.layer_rows is not None
    )
    torch.manual_seed(4)
    run_micro_batches(parts.model.train(), slices, torch.Tensor.backward, lambda _: contextlib.nullcontext())
    return gradients(parts.model)


@pytest.mark.parametrize("architecture", CONFIGS)
@pytest.mark.parametrize("others", ["", "gradient-checkpointing", "chunked-layers:size=2", "micro-batch:size=3 lora"])
def test_gradients_are_the_same_to_the_bit(architecture: str, others: str) -> None:
    without, with_it = (
        gradients_of(architecture, *others.split(), *more) for more in ([], ["offload-activations:smallest=0"])
    )
    assert torch.equal(without, with_it)


def test_the_same_memory_goes_to_the_host_once(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert sorted(sent) == [160, 160]  # x, for both layers; and what exp() made; no weight
    out.sum().backward()
    assert x.grad is not None


def test_what_was_written_to_between_goes_again(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_cpu_has_nothing_to_gain() -> None:
    parts = parts_of()
    assert parts.device == CPU
    with pytest.raises(RecipeError, match=r"there is no second memory to move things to\. Leave it out\.$"):
        OffloadActivations().apply(parts)
    assert Recipe.parse(["offload-activations"]).result.value == "same"
