"""Combined and parallel traces give the same estimates as full traces in this process."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from heads import build, make_batch, small_config
from parts import skip_unless_installed
from simulation.test_simulate import LABELS, TOKENIZER, job_of

from tightfit.data.batch_spec import BatchSpec
from tightfit.device import GPUS, Device, find_device
from tightfit.engine.model_source import GivenModel
from tightfit.simulation.job_simulation import (
    Simulation,
    SimulationSetup,
    _separate_parts,
    _trace_in_worker,
    trace_in_parallel,
)
from tightfit.simulation.worst_case import Lengths
from tightfit.strategies import STRATEGIES
from tightfit.strategies.base import Changes, Strategy
from tightfit.strategies.recipe import Recipe, parse_strategy
from tightfit.system.processes import usable_cpus

CPU = find_device("cpu")
LENGTHS = Lengths.uniform(8, 24)
WORDS = BatchSpec.of(make_batch(3, "causal", 8), make_batch(2, "causal", 9))


def simulation(folder: Path, device: Device = CPU, recipe: str = "") -> Simulation:
    small_config("Bert", 6).save_pretrained(folder)
    setup = SimulationSetup.of(job_of(folder), device, LABELS, TOKENIZER)
    if "chunked-loss" in recipe or "packing" in recipe:
        setup = replace(setup, model=GivenModel(build("Llama", "causal")), batch=WORDS)
    return Simulation(setup, LENGTHS, overhead=0)


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
    combined = simulation(folder, device, specs).estimate(recipe)
    monkeypatch.setattr(Simulation, "_combined", lambda *_: None)
    full = simulation(folder, device, specs).estimate(recipe)
    assert (combined.phases, combined.host) == (full.phases, full.host)


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_changes_only_what_it_declares(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Combined with others: traced in two parts, by what each changes, it needs the same bytes as traced as a whole."""
    skip_unless_installed(name)
    strategy = parse_strategy(name + _SETTINGS.get(name, ""))
    others = [parse_strategy(spec) for spec in ("gradient-checkpointing", "adafactor")]
    others = [*needed_by(name), *(other for other in others if other.exclusive != strategy.exclusive)]
    recipe = Recipe.of([strategy, *others])
    separate = _separate_parts(recipe)
    inseparable = strategy.steps_in_backward or not strategy.hints.same_ops_at_any_size
    assert (separate is None) == (inseparable or recipe in (recipe.gradient_part(), recipe.optimizer_part()))
    if separate is not None:
        _check_combined(tmp_path, GPUS["A100 40GB"], " ".join(recipe.specs), monkeypatch)


@pytest.mark.parametrize("name", [name for name, kind in STRATEGIES.items() if kind.changes is Changes.BATCH])
def test_a_strategy_that_changes_the_batch_needs_no_trace_of_its_own(tmp_path: Path, name: str) -> None:
    strategy = parse_strategy(name + _SETTINGS.get(name, ""))
    recipe, others = Recipe.of([strategy, parse_strategy("adafactor")]), Recipe.parse(["adafactor"])
    shared = simulation(tmp_path)
    for known in (Recipe(), others):
        shared.estimate(known)
    assert shared.missing([recipe]) == []
    assert shared.estimate(recipe).phases == simulation(tmp_path).estimate(recipe).phases


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


def needed_by(name: str) -> list[Strategy]:
    """The strategy without which this one cannot be used."""
    needed = STRATEGIES[name].needs
    return [] if needed is None else [parse_strategy(needed)]


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_traced_recipe_can_be_pickled(tmp_path: Path, name: str) -> None:
    """Tested in one process, so that it does not depend on the number of cores."""
    skip_unless_installed(name)
    on_gpu = simulation(tmp_path, GPUS["A100 40GB"], name)
    traced = _trace_in_worker(on_gpu, Recipe.of([parse_strategy(name + _SETTINGS.get(name, "")), *needed_by(name)]))
    assert traced is not None
    copy = pickle.loads(pickle.dumps(traced))
    assert copy.parts.step_batching == traced.parts.step_batching
    assert copy.training.trace.blocks
