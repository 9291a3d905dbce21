"""A pass and an optimizer played apart take what they take together, and plays on other cores what they take here."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from heads import small_config
from parts import skip_unless_installed
from simulation.test_simulate import LABELS, TOKENIZER, job_of

from tightfit.device import GPUS, Device
from tightfit.processes import usable_cpus
from tightfit.simulation import simulation as simulation_module
from tightfit.simulation.simulation import Simulation, SimulationSetup, _halves, trace_in_parallel
from tightfit.simulation.worst_case import Lengths
from tightfit.strategies import STRATEGIES
from tightfit.strategies.recipe import Recipe

CPU = Device("cpu", "this machine's CPU", bf16=True, fp16=False)
LENGTHS = Lengths.uniform(8, 24)


def simulation(folder: Path, device: Device = CPU) -> Simulation:
    small_config("Bert", 6).save_pretrained(folder)
    return Simulation(
        SimulationSetup(job_of(folder), device, LABELS, TOKENIZER), LENGTHS, always_padded=True, overhead=0
    )


@pytest.mark.parametrize("device", [CPU, GPUS["T4 16GB"]], ids=lambda device: device.title)
@pytest.mark.parametrize(
    "words",
    ["gradient-checkpointing adafactor", "gradient-checkpointing:every=2 adamw-16bit", "micro-batch:size=2 adafactor"],
)
def test_spliced_bills_are_those_of_whole_plays(
    tmp_path: Path, device: Device, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _is_as_whole(tmp_path, device, words, monkeypatch)


@pytest.mark.parametrize(
    "words",
    [
        "gradient-checkpointing offload-optimizer",
        "mixed-precision adafactor",
        "mixed-precision offload-optimizer adamw-16bit",
    ],
)
def test_so_are_those_of_what_only_cards_do(tmp_path: Path, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _is_as_whole(tmp_path, GPUS["T4 16GB"], words, monkeypatch)


def _is_as_whole(folder: Path, device: Device, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe.parse(words.split())
    assert _halves(recipe) is not None
    spliced = simulation(folder, device).estimate(recipe)
    monkeypatch.setattr(Simulation, "_spliced", lambda *_: None)
    whole = simulation(folder, device).estimate(recipe)
    assert (spliced.phases, spliced.host) == (whole.phases, whole.host)


@pytest.mark.skipif(usable_cpus() < 2, reason="needs two cores and fork")
def test_plays_on_other_cores_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipes = [
        Recipe.parse(words.split()) for words in ("", "gradient-checkpointing", "adafactor", "chunked-layers:size=2")
    ]
    run_in_fork, here = simulation(tmp_path), simulation(tmp_path)
    trace_in_parallel(run_in_fork, recipes)
    estimates = [here.estimate(recipe).phases for recipe in recipes]
    assert not run_in_fork.missing(recipes)
    monkeypatch.setattr(Simulation, "_trace_training", lambda *_: pytest.fail("played again"))
    assert [run_in_fork.estimate(recipe).phases for recipe in recipes] == estimates


_SETTINGS = {"micro-batch": ":size=2", "chunked-layers": ":size=2", "max-length": ":tokens=8"}


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_play_can_go_from_process_to_process(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many cores there are: what cannot would end a plan where there are two."""
    skip_unless_installed(name)
    monkeypatch.setattr(simulation_module, "_forked", simulation(tmp_path, GPUS["A100 40GB"]))
    traced = simulation_module._trace_training(Recipe.parse([name + _SETTINGS.get(name, "")]))
    assert (traced is None) == (name in ("lora", "freeze"))  # which hold their model: played where they are asked for
    assert (pickle.loads(pickle.dumps(traced)) is None) == (traced is None)
