"""One step as it goes, and whose the largest tensors are: the same from shallow plays and from whole ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from heads import small_config
from simulation.test_depth import setup
from simulation.test_simulate import LABELS, TOKENIZER, job_of

from tightfit.device import GPUS, Device
from tightfit.simulation.profile import StepProfile
from tightfit.simulation.simulation import Simulation, SimulationSetup
from tightfit.simulation.tracer import any_layer
from tightfit.simulation.worst_case import Lengths
from tightfit.strategies.base import MemoryKind
from tightfit.strategies.recipe import Recipe

CPU = Device("cpu", "this machine's CPU", bf16=True, fp16=False)
LENGTHS = Lengths.uniform(8, 24)
RECIPES = [
    "",
    "micro-batch:size=2",
    "micro-batch:size=2 gradient-checkpointing adafactor",
    "chunked-layers:size=2 adafactor optimizer-in-backward",
    "lora gradient-checkpointing",
    "freeze:cache=false",
]


def simulation(folder: Path, device: Device = CPU, architecture: str = "Bert") -> Simulation:
    small_config(architecture, 6).save_pretrained(folder)
    return Simulation(
        SimulationSetup(job_of(folder), device, LABELS, TOKENIZER), LENGTHS, always_padded=True, overhead=0
    )


def course(makes: Simulation, words: str) -> StepProfile:
    found = makes.course(Recipe.parse(words.split()))
    assert found is not None
    return found


def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is told from shallow plays, nothing is spliced."""
    monkeypatch.setattr(SimulationSetup, "_depths", lambda *_: [])
    monkeypatch.setattr(Simulation, "_spliced", lambda *_: None)


@pytest.mark.parametrize("words", RECIPES)
@pytest.mark.parametrize("architecture", ["Bert", "GPT2"])
def test_names_of_shallow_plays_are_those_of_the_whole(
    tmp_path: Path, words: str, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shallow = course(simulation(tmp_path, architecture=architecture), words)
    whole(monkeypatch)
    deep = course(simulation(tmp_path, architecture=architecture), words)
    assert set(shallow.largest) == set(deep.largest)
    assert shallow.phase == deep.phase


@pytest.mark.parametrize("device", [CPU, GPUS["T4 16GB"]], ids=lambda device: device.title)
@pytest.mark.parametrize("words", RECIPES)
def test_the_highest_point_of_the_step_is_in_the_bill(tmp_path: Path, device: Device, words: str) -> None:
    makes = simulation(tmp_path, device)
    estimate, found = makes.estimate(Recipe.parse(words.split())), course(makes, words)
    highest = max(sum(sizes) for sizes in zip(*found.kinds.values(), strict=True))
    phases = {name: sum(kinds.values()) - kinds[MemoryKind.ALLOCATOR] for name, kinds in estimate.phases.items()}
    assert highest == max(phases[name] for name in ("forward", "backward", "step"))
    assert {"forward", "backward", "step"} <= {stretch.phase for stretch in found.stretches}
    assert all(len(sizes) < 500 for sizes in found.kinds.values())


def test_shapes_are_those_of_the_batch(tmp_path: Path) -> None:
    """What was played had 6 and 4 rows; the batch has 8 of 24 tokens."""
    makes = simulation(tmp_path)
    config: Any = makes.setup._config
    wide = next(each for each in course(makes, "").largest if each.owner and each.owner.endswith("intermediate_act_fn"))
    assert wide.shape == (8, 24, config.intermediate_size)
    assert wide.size == 8 * 24 * config.intermediate_size * 4
    assert wide.count == config.num_hidden_layers
    assert wide.kind is MemoryKind.ACTIVATIONS


def test_every_tensor_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tightfit.simulation.profile._LARGEST", 10**6)
    makes = simulation(tmp_path)
    found, estimate = course(makes, ""), makes.estimate(Recipe())
    for kind, size in estimate.phases[estimate.phase].items():
        if kind is not MemoryKind.ALLOCATOR:
            assert sum(each.size * each.count for each in found.largest if each.kind is kind) == size
    unnamed = [each for each in found.largest if each.owner is None and each.kind is not MemoryKind.INPUTS]
    assert sum(each.size * each.count for each in unnamed) < 0.01 * estimate.peak


def test_weights_gradients_and_state_have_the_names_of_parameters(tmp_path: Path) -> None:
    makes = setup(tmp_path, "Bert")
    trace = makes._trace_training(Recipe(), lambda parts: Simulation(makes, LENGTHS, overhead=0)._worst(parts)).trace
    for kind in (MemoryKind.WEIGHTS, MemoryKind.GRADIENTS, MemoryKind.OPTIMIZER_STATE):
        owners = [block.owner for block in trace.blocks if block.kind is kind and block.size > 64]
        assert owners
        assert all(isinstance(owner, str) and owner.startswith(("bert.", "classifier.")) for owner in owners)


def test_a_name_for_any_layer() -> None:
    assert any_layer("encoder.layer.3.output") == "encoder.layer.*.output"
    assert any_layer("h.11") == "h.*"
    assert any_layer("conv1.weight") == "conv1.weight"
