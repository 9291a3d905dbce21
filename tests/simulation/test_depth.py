"""The bill of a deep model from two shallow plays, against the play of the whole model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from heads import CONFIGS, small_config
from parts import CPU

from tightfit import Job
from tightfit.data.rows import Labels
from tightfit.device import Device, find_gpu
from tightfit.simulation.estimate import phases_of
from tightfit.simulation.scaling import constant_sizes
from tightfit.simulation.simulate import BatchShapes, TracedTraining
from tightfit.simulation.simulation import SimulationSetup
from tightfit.simulation.timeline import Timeline
from tightfit.strategies.recipe import Recipe

TOKENIZER: Any = SimpleNamespace(pad_token_id=0)
SHAPES = BatchShapes(((3, 24), (2, 20)), ((3, 22),), feature_cache=((3, 24),))
DEEP = {"ModernBert": 13, "Bert": 12}  # the first repeats itself every three layers
TWO_AS_ONE = "tiled-attention chunked-layers:size=2,layers=2 adafactor optimizer-in-backward"
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
    TWO_AS_ONE,
    "lora",
    "lora gradient-checkpointing adafactor",
    "lora chunked-layers:size=2 optimizer-in-backward",
]


class Watched(SimulationSetup):
    """Remembers how deep the models were that it played."""

    depths: list[int | None]

    def _trace_training(self, *args: Any, **how: Any) -> TracedTraining:
        self.__dict__.setdefault("depths", []).append(how.get("layers"))
        return super()._trace_training(*args, **how)


def setup(folder: Path, architecture: str, device: Device = CPU) -> Watched:
    small_config(architecture, DEEP.get(architecture, 8)).save_pretrained(folder)
    job = Job(model=str(folder), data="none", batch_size=8, max_length=24)
    return Watched(job, device, Labels(("a", "b", "c")), TOKENIZER)


def phases(training: TracedTraining, device: Device) -> dict[str, int]:
    timeline = Timeline.of(training.trace, constant_sizes(training.trace))
    estimate = phases_of(timeline, device, [(s.rows, s.length) for s in training.trace.sections])
    return {phase: sum(kinds.values()) for phase, kinds in estimate.items()}


def agree(players: Watched, recipe: str) -> bool:
    """Whether two shallow plays tell what the whole one tells. They take no blocks smaller than 64 bytes."""
    words = Recipe.parse(recipe.split())
    deepened, whole = players.trace(words, lambda _: SHAPES), players._trace_training(words, lambda _: SHAPES)
    assert players.depths[-1] is None
    assert deepened.parameters == whole.parameters
    assert deepened.trainable_parameters == whole.trainable_parameters
    predicted, found = phases(deepened, players.device), phases(whole, players.device)
    return predicted == pytest.approx(found, abs=64 * len(whole.trace.blocks), rel=0.001)


@pytest.mark.parametrize("architecture", list(CONFIGS))
def test_two_shallow_plays_tell_what_the_deep_model_takes(tmp_path: Path, architecture: str) -> None:
    players = setup(tmp_path, architecture)
    assert agree(players, "")
    assert len(players.depths) == 3


@pytest.mark.parametrize("recipe", RECIPES)
def test_under_every_recipe(tmp_path: Path, recipe: str) -> None:
    players = setup(tmp_path, "Bert")
    assert agree(players, recipe)
    assert len(players.depths) == 3


@pytest.mark.parametrize(
    "recipe", ["", "mixed-precision gradient-checkpointing adafactor", "freeze mixed-precision", "lora", TWO_AS_ONE]
)
def test_on_a_card(tmp_path: Path, recipe: str) -> None:
    players = setup(tmp_path, "Bert", find_gpu("RTX 3060 12GB"))
    assert agree(players, recipe)


@pytest.mark.parametrize("recipe", ["freeze:layers=3", "freeze:pattern=*.layer.4.*", "gradient-checkpointing:every=6"])
def test_where_layers_are_unlike_the_whole_model_is_played(tmp_path: Path, recipe: str) -> None:
    players = setup(tmp_path, "Bert")
    assert agree(players, recipe)
    assert players.depths == [None, None]
