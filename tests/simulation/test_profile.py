"""The profile of a step and the owners of its largest tensors: equal for shallow and full traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from heads import small_config
from simulation.test_depth import make_setup
from simulation.test_simulate import LABELS, TOKENIZER, job_of

from tightfit.device import GPUS, Device, find_device
from tightfit.simulation.job_simulation import Simulation, SimulationSetup
from tightfit.simulation.profile import StepProfile
from tightfit.simulation.tracer import wildcard_layer
from tightfit.simulation.worst_case import Lengths
from tightfit.strategies.base import MemoryKind
from tightfit.strategies.recipe import Recipe

CPU = find_device("cpu")
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
    return Simulation(SimulationSetup.of(job_of(folder), device, LABELS, TOKENIZER), LENGTHS, overhead=0)


def step_profile(simulated: Simulation, specs: str) -> StepProfile:
    found = simulated.profile(Recipe.parse(specs.split()))
    assert found is not None
    return found


def trace_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither extrapolate the depth nor combine traces."""
    monkeypatch.setattr(SimulationSetup, "_depths", lambda *_: [])
    monkeypatch.setattr(Simulation, "_combined", lambda *_: None)


@pytest.mark.slow
@pytest.mark.parametrize("specs", RECIPES)
@pytest.mark.parametrize("architecture", ["Bert", "GPT2"])
def test_owners_of_shallow_traces_equal_those_of_full_traces(
    tmp_path: Path, specs: str, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shallow = step_profile(simulation(tmp_path, architecture=architecture), specs)
    trace_everything(monkeypatch)
    deep = step_profile(simulation(tmp_path, architecture=architecture), specs)
    assert set(shallow.largest) == set(deep.largest)
    assert shallow.phase == deep.phase


@pytest.mark.parametrize("device", [CPU, GPUS["T4 16GB"]], ids=lambda device: device.label)
@pytest.mark.parametrize("specs", RECIPES)
def test_the_highest_point_of_the_step_is_in_the_estimate(tmp_path: Path, device: Device, specs: str) -> None:
    simulated = simulation(tmp_path, device)
    estimate, found = simulated.estimate(Recipe.parse(specs.split())), step_profile(simulated, specs)
    highest = max(sum(sizes) for sizes in zip(*found.kinds.values(), strict=True))
    phases = {name: sum(kinds.values()) - kinds[MemoryKind.ALLOCATOR] for name, kinds in estimate.phases.items()}
    assert highest == max(phases[name] for name in ("forward", "backward", "step"))
    assert {"forward", "backward", "step"} <= {segment.phase for segment in found.segments}
    assert all(len(sizes) < 500 for sizes in found.kinds.values())


def test_shapes_are_rescaled_to_the_batch(tmp_path: Path) -> None:
    """The trace had 6 and 4 rows; the batch has 8 of 24 tokens."""
    simulated = simulation(tmp_path)
    config: Any = simulated.setup.model._config
    wide = next(
        each
        for each in step_profile(simulated, "").largest
        if each.owner and each.owner.endswith("intermediate_act_fn")
    )
    assert wide.shape == (8, 24, config.intermediate_size)
    assert wide.size == 8 * 24 * config.intermediate_size * 4
    assert wide.count == config.num_hidden_layers
    assert wide.kind is MemoryKind.ACTIVATIONS


def test_every_tensor_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tightfit.simulation.profile._MAX_GROUPS", 10**6)
    simulated = simulation(tmp_path)
    found, estimate = step_profile(simulated, ""), simulated.estimate(Recipe())
    for kind, size in estimate.phases[estimate.phase].items():
        if kind is not MemoryKind.ALLOCATOR:
            assert sum(each.size * each.count for each in found.largest if each.kind is kind) == size
    unnamed = [each for each in found.largest if each.owner is None and each.kind is not MemoryKind.INPUTS]
    assert sum(each.size * each.count for each in unnamed) < 0.01 * estimate.peak


def test_weights_gradients_and_state_are_owned_by_parameters(tmp_path: Path) -> None:
    setup = make_setup(tmp_path, "Bert")
    shapes = Simulation(setup, LENGTHS, overhead=0)._fixed_shapes
    trace = setup._trace_training(Recipe(), shapes).trace
    for kind in (MemoryKind.WEIGHTS, MemoryKind.GRADIENTS, MemoryKind.OPTIMIZER_STATE):
        owners = [block.owner for block in trace.blocks if block.kind is kind and block.size > 64]
        assert owners
        assert all(isinstance(owner, str) and owner.startswith(("bert.", "classifier.")) for owner in owners)


def test_layer_indices_become_wildcards() -> None:
    assert wildcard_layer("encoder.layer.3.output") == "encoder.layer.*.output"
    assert wildcard_layer("h.11") == "h.*"
    assert wildcard_layer("conv1.weight") == "conv1.weight"
