"""The estimate of a deep model extrapolated from two shallow traces, against the trace of the full model."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from heads import CONFIGS, small_config
from parts import CPU
from simulation.test_simulate import for_source

from tightfit import Job
from tightfit.data.labels import Labels
from tightfit.device import Device, find_gpu
from tightfit.simulation.estimate import phases_of
from tightfit.simulation.job_simulation import Simulation, SimulationSetup
from tightfit.simulation.scaling import constant_sizes
from tightfit.simulation.simulate import BatchShapes, TracedTraining
from tightfit.simulation.timeline import Timeline
from tightfit.simulation.worst_case import Lengths
from tightfit.strategies.recipe import Recipe

TOKENIZER: Any = SimpleNamespace(pad_token_id=0)
SHAPES = BatchShapes(((3, 24), (2, 20)), ((3, 22),), encoder=((3, 24),))
DEEP = {"ModernBert": 13, "Bert": 12}  # ModernBert repeats every three layers
TWO_LAYERS_PER_BLOCK = "tiled-attention chunked-layers:size=2,layers=2 adafactor optimizer-in-backward"
RECIPES = [
    "gradient-checkpointing",
    "gradient-checkpointing:every=2",
    "mixed-precision gradient-checkpointing",
    "adafactor",
    "adamw:fused=false",
    "freeze",
    "freeze:cache=false",
    "freeze:embeddings=true",
    "chunked-layers:size=2",
    "chunked-layers:size=2 adafactor optimizer-in-backward",
    "tiled-attention chunked-layers:size=2 adafactor optimizer-in-backward",
    "chunked-layers:size=2,layers=2",
    TWO_LAYERS_PER_BLOCK,
    "lora",
    "lora gradient-checkpointing adafactor",
    "lora chunked-layers:size=2 optimizer-in-backward",
]


class DepthRecorder(SimulationSetup):
    """Records the depths of the models that it traces."""

    depths: list[int | None]

    def _trace_training(self, *args: Any, **how: Any) -> TracedTraining:
        self.__dict__.setdefault("depths", []).append(how.get("layers"))
        return super()._trace_training(*args, **how)


def make_setup(folder: Path, architecture: str, device: Device = CPU) -> DepthRecorder:
    small_config(architecture, DEEP.get(architecture, 8)).save_pretrained(folder)
    job = Job(model=str(folder), data="none", batch_size=8, max_length=24)
    return DepthRecorder.of(job, device, Labels(("a", "b", "c")), TOKENIZER)


def phases(training: TracedTraining, device: Device) -> dict[str, int]:
    timeline = Timeline.of(training.trace, constant_sizes(training.trace))
    estimate = phases_of(timeline, device, [(s.rows, s.length) for s in training.trace.sections])
    return {phase: sum(kinds.values()) for phase, kinds in estimate.items()}


def agree(setup: DepthRecorder, recipe: str) -> bool:
    """Whether the extrapolated trace equals the full one, apart from blocks smaller than 64 bytes."""
    parsed = Recipe.parse(recipe.split())
    shapes = partial(for_source, SHAPES)
    extrapolated, full = setup.trace(parsed, shapes), setup._trace_training(parsed, shapes)
    assert setup.depths[-1] is None
    assert extrapolated.parameters == full.parameters
    assert extrapolated.trainable_parameters == full.trainable_parameters
    predicted, found = phases(extrapolated, setup.device), phases(full, setup.device)
    return predicted == pytest.approx(found, abs=64 * len(full.trace.blocks), rel=0.001)


@pytest.mark.parametrize("architecture", list(CONFIGS))
def test_two_shallow_traces_extrapolate_to_the_deep_model(tmp_path: Path, architecture: str) -> None:
    setup = make_setup(tmp_path, architecture)
    assert agree(setup, "")
    assert len(setup.depths) == 3


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_extrapolation_is_exact_under_every_recipe(tmp_path: Path, recipe: str) -> None:
    setup = make_setup(tmp_path, "Bert")
    assert agree(setup, recipe)
    assert len(setup.depths) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe",
    ["", "mixed-precision gradient-checkpointing adafactor", "freeze mixed-precision", "lora", TWO_LAYERS_PER_BLOCK],
)
def test_extrapolation_is_exact_on_a_gpu(tmp_path: Path, recipe: str) -> None:
    setup = make_setup(tmp_path, "Bert", find_gpu("RTX 3060 12GB"))
    assert agree(setup, recipe)


@pytest.mark.parametrize("recipe", ["freeze:layers=3", "freeze:pattern=*.layer.4.*", "gradient-checkpointing:every=6"])
def test_the_full_model_is_traced_where_layers_differ(tmp_path: Path, recipe: str) -> None:
    setup = make_setup(tmp_path, "Bert")
    assert agree(setup, recipe)
    assert setup.depths == [None, None]


@pytest.mark.parametrize("longest", [9, 16, 63, 64, 70, 128])
def test_at_every_length_one_trace_gives_all_micro_batches(tmp_path: Path, longest: int) -> None:
    """A mask of 64 tokens has 64 bytes and one of 56 fewer: no limit may tell the two traced micro-batches apart."""
    small_config("Bert", 8, max_position_embeddings=128).save_pretrained(tmp_path)
    job = Job(model=str(tmp_path), data="none", batch_size=8, max_length=longest)
    setup = SimulationSetup.of(job, CPU, Labels(("a", "b", "c")), TOKENIZER)
    assert Simulation(setup, Lengths.uniform(8, longest)).traced(Recipe())[0].is_scalable


@pytest.mark.parametrize("longest", [90, 91, 96, 103])
def test_attention_with_many_heads_is_traced_once_for_all_micro_batches(tmp_path: Path, longest: int) -> None:
    """With 16 heads a tile holds two texts of 90 tokens and one of 91, which needs fewer copies."""
    sizes = {"num_attention_heads": 16, "max_position_embeddings": 128}
    small_config("Bert", 8, **sizes).save_pretrained(tmp_path)
    job = Job(model=str(tmp_path), data="none", batch_size=8, max_length=longest)
    simulation = Simulation(SimulationSetup.of(job, CPU, Labels(("a", "b")), TOKENIZER), Lengths.uniform(8, longest))
    assert simulation.traced(Recipe.parse(["tiled-attention"]))[0].is_scalable
