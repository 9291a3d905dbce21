"""Functions that a simulation replaces are replaced in its own thread only, and restored."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from parts import CPU
from plans import planner_of

from library_state import changes, library_functions
from tightfit.device import GPUS, Device
from tightfit.errors import ModelError
from tightfit.ops import buffer_pool, chunked_layer
from tightfit.simulation.own_loop import estimate_loop
from tightfit.simulation.patches import replaced, uninitialized_weights
from tightfit.strategies.recipe import Recipe


def in_thread(function: Callable[[], Any]) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


def test_only_this_thread_calls_the_replacement() -> None:
    library = SimpleNamespace(name=lambda: "original")
    original = library.name
    with replaced(library, "name", lambda: "replacement"):
        assert library.name() == "replacement"
        assert in_thread(lambda: library.name()) == "original"
    assert library.name is original
    with pytest.raises(ZeroDivisionError), replaced(library, "name", lambda: "replacement"):
        _ = 1 / 0
    assert library.name is original


def test_a_replacement_that_another_patch_restores_later_calls_the_original() -> None:
    """transformers replaces some of the same functions while it loads a model."""
    library = SimpleNamespace(name=lambda: "original")
    with replaced(library, "name", lambda: "replacement"):
        seen_by_other_patch = library.name
    library.name = seen_by_other_patch
    assert library.name() == "original"


def test_weights_stay_uninitialized_in_this_thread_only() -> None:
    config = transformers.BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    before, state = library_functions(), torch.get_rng_state()
    with uninitialized_weights():
        transformers.BertModel(config)
        assert torch.equal(torch.get_rng_state(), state)
        in_thread(lambda: transformers.BertModel(config))
        assert not torch.equal(torch.get_rng_state(), state)
    assert changes(before) == []
    torch.set_rng_state(state)


def fail(*_: Any) -> None:
    raise ValueError("an error of the model")


class Model(torch.nn.Module):
    """Fails in its forward or in its backward pass, if told so."""

    def __init__(self, failing: str) -> None:
        super().__init__()
        self.linear, self.failing = torch.nn.Linear(8, 8), failing

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.nn.functional.dropout(self.linear(x).softmax(-1))
        if self.failing == "forward":
            fail()
        if self.failing == "backward":
            hidden.register_hook(fail)
        return hidden.sum()


class FailingOptimizer(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:
        fail()


@pytest.mark.parametrize("device", [CPU, GPUS["T4 16GB"]], ids=["cpu", "gpu"])
@pytest.mark.parametrize("failing", ["build", "forward", "backward", "step"])
def test_a_loop_that_fails_leaves_nothing_replaced(device: Device, failing: str) -> None:
    def build() -> Callable[[], None]:
        model = Model(failing)
        optimizer = FailingOptimizer(model.parameters(), lr=0.1)
        if failing == "build":
            fail()

        def step() -> None:
            model(torch.ones(2, 8)).backward()
            optimizer.step()

        return step

    before = library_functions()
    with pytest.raises(ModelError, match="an error of the model"):
        estimate_loop(build, device)
    assert changes(before) == []


@pytest.mark.parametrize("device", [CPU, GPUS["T4 16GB"]], ids=["cpu", "gpu"])
def test_a_simulated_training_that_fails_leaves_nothing_replaced(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the backward pass of a chunked layer, where a buffer pool is in use too."""
    simulation = planner_of(tmp_path, device).simulation
    monkeypatch.setattr(chunked_layer._Split, "backward", staticmethod(fail))  # before it releases the pool
    before = library_functions()
    with pytest.raises(ModelError, match="an error of the model"):
        simulation.estimate(Recipe.parse(["chunked-layers:size=4", "adafactor"]))
    assert changes(before) == []
    assert buffer_pool._this_thread.active is None
