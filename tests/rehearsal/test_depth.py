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
from tightfit.device import Device, find_card
from tightfit.simulation.estimate import moments_of
from tightfit.simulation.scaling import fixed_sizes
from tightfit.simulation.simulate import Extents, Performance
from tightfit.simulation.simulation import Company
from tightfit.simulation.timeline import Timeline
from tightfit.strategies.recipe import Recipe

TOKENIZER: Any = SimpleNamespace(pad_token_id=0)
EXTENTS = Extents(((3, 24), (2, 20)), ((3, 22),), trunk=((3, 24),))
DEEP = {"ModernBert": 13, "Bert": 12}  # the first repeats itself every three layers
TWO_AS_ONE = "attention slice-layers:size=2,layers=2 adafactor step-in-backward"
RECIPES = [
    "checkpoint",
    "checkpoint:every=2",
    "mixed-precision checkpoint",
    "adafactor",
    "adamw:fused=false",
    "freeze",
    "freeze:cache=false",
    "freeze:embeddings=true",
    "slice-layers:size=2",
    "slice-layers:size=2 adafactor step-in-backward",
    "attention slice-layers:size=2 adafactor step-in-backward",
    "slice-layers:size=2,layers=2",
    TWO_AS_ONE,
    "lora",
    "lora checkpoint adafactor",
    "lora slice-layers:size=2 step-in-backward",
]


class Watched(Company):
    """Remembers how deep the models were that it played."""

    depths: list[int | None]

    def _play(self, *args: Any, **how: Any) -> Performance:
        self.__dict__.setdefault("depths", []).append(how.get("layers"))
        return super()._play(*args, **how)


def company(folder: Path, architecture: str, device: Device = CPU) -> Watched:
    small_config(architecture, DEEP.get(architecture, 8)).save_pretrained(folder)
    job = Job(model=str(folder), data="none", batch_size=8, max_length=24)
    return Watched(job, device, Labels(("a", "b", "c")), TOKENIZER)


def moments(performance: Performance, device: Device) -> dict[str, int]:
    timeline = Timeline.of(performance.tape, fixed_sizes(performance.tape))
    bill = moments_of(timeline, device, [(s.rows, s.length) for s in performance.tape.sections])
    return {moment: sum(kinds.values()) for moment, kinds in bill.items()}


def agree(players: Watched, recipe: str) -> bool:
    """Whether two shallow plays tell what the whole one tells. They take no blocks smaller than 64 bytes."""
    words = Recipe.parse(recipe.split())
    deepened, whole = players.perform(words, lambda _: EXTENTS), players._play(words, lambda _: EXTENTS)
    assert players.depths[-1] is None
    assert deepened.parameters == whole.parameters
    assert deepened.trainable_parameters == whole.trainable_parameters
    foretold, found = moments(deepened, players.device), moments(whole, players.device)
    return foretold == pytest.approx(found, abs=64 * len(whole.tape.blocks), rel=0.001)


@pytest.mark.parametrize("architecture", list(CONFIGS))
def test_two_shallow_plays_tell_what_the_deep_model_takes(tmp_path: Path, architecture: str) -> None:
    players = company(tmp_path, architecture)
    assert agree(players, "")
    assert len(players.depths) == 3


@pytest.mark.parametrize("recipe", RECIPES)
def test_under_every_recipe(tmp_path: Path, recipe: str) -> None:
    players = company(tmp_path, "Bert")
    assert agree(players, recipe)
    assert len(players.depths) == 3


@pytest.mark.parametrize(
    "recipe", ["", "mixed-precision checkpoint adafactor", "freeze mixed-precision", "lora", TWO_AS_ONE]
)
def test_on_a_card(tmp_path: Path, recipe: str) -> None:
    players = company(tmp_path, "Bert", find_card("RTX 3060 12GB"))
    assert agree(players, recipe)


@pytest.mark.parametrize("recipe", ["freeze:layers=3", "freeze:pattern=*.layer.4.*", "checkpoint:every=6"])
def test_where_layers_are_unlike_the_whole_model_is_played(tmp_path: Path, recipe: str) -> None:
    players = company(tmp_path, "Bert")
    assert agree(players, recipe)
    assert players.depths == [None, None]
