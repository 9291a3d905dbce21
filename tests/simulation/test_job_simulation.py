"""Combined and parallel traces give the same estimates as full traces in this process."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from heads import small_config
from parts import skip_unless_installed
from simulation.test_simulate import LABELS, TOKENIZER, job_of

from tightfit.device import GPUS, Device
from tightfit.processes import usable_cpus
from tightfit.simulation.job_simulation import (
    Simulation,
    SimulationSetup,
    _separate_parts,
    _trace_in_worker,
    trace_in_parallel,
)
from tightfit.simulation.worst_case import Lengths
from tightfit.strategies import STRATEGIES
from tightfit.strategies.recipe import Recipe

CPU = Device("cpu", "this machine's CPU", bf16=True, fp16=False)
LENGTHS = Lengths.uniform(8, 24)


def simulation(folder: Path, device: Device = CPU) -> Simulation:
    small_config("Bert", 6).save_pretrained(folder)
    return Simulation(
        SimulationSetup(job_of(folder), device, LABELS, TOKENIZER), LENGTHS, assume_padding=True, overhead=0
    )


@pytest.mark.slow
@pytest.mark.parametrize("device", [CPU, GPUS["T4 16GB"]], ids=lambda device: device.label)
@pytest.mark.parametrize(
    "specs",
    ["gradient-checkpointing adafactor", "gradient-checkpointing:every=2 adamw-16bit", "micro-batch:size=2 adafactor"],
)
def test_combined_traces_equal_full_traces(
    tmp_path: Path, device: Device, specs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _check_combined(tmp_path, device, specs, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(
    "specs",
    [
        "gradient-checkpointing offload-optimizer",
        "mixed-precision adafactor",
        "mixed-precision offload-optimizer adamw-16bit",
    ],
)
def test_combined_traces_equal_full_traces_for_gpu_strategies(
    tmp_path: Path, specs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _check_combined(tmp_path, GPUS["T4 16GB"], specs, monkeypatch)


def _check_combined(folder: Path, device: Device, specs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe.parse(specs.split())
    assert _separate_parts(recipe) is not None
    combined = simulation(folder, device).estimate(recipe)
    monkeypatch.setattr(Simulation, "_combined", lambda *_: None)
    full = simulation(folder, device).estimate(recipe)
    assert (combined.phases, combined.host) == (full.phases, full.host)


@pytest.mark.skipif(usable_cpus() < 2, reason="needs two cores and fork")
def test_parallel_traces_equal_local_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipes = [
        Recipe.parse(specs.split()) for specs in ("", "gradient-checkpointing", "adafactor", "chunked-layers:size=2")
    ]
    parallel, here = simulation(tmp_path), simulation(tmp_path)
    trace_in_parallel(parallel, recipes)
    estimates = [here.estimate(recipe).phases for recipe in recipes]
    assert not parallel.missing(recipes)
    monkeypatch.setattr(Simulation, "_trace", lambda *_: pytest.fail("traced again"))
    assert [parallel.estimate(recipe).phases for recipe in recipes] == estimates


_SETTINGS = {"micro-batch": ":size=2", "chunked-layers": ":size=2", "max-length": ":tokens=8"}


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_traced_recipe_can_be_pickled(tmp_path: Path, name: str) -> None:
    """Tested in one process, so that it does not depend on the number of cores."""
    skip_unless_installed(name)
    on_gpu = simulation(tmp_path, GPUS["A100 40GB"])
    traced = _trace_in_worker(on_gpu, Recipe.parse([name + _SETTINGS.get(name, "")]))
    assert (traced is None) == (name in ("lora", "freeze"))  # they hold their model, so they are traced on demand
    assert (pickle.loads(pickle.dumps(traced)) is None) == (traced is None)
