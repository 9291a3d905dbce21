"""A pass and an optimizer played apart take what they take together, and plays on other cores what they take here."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from heads import small_config
from parts import skip_unless_installed
from test_stage import LABELS, TOKENIZER, job_of

from tightfit.device import CARDS, Device
from tightfit.processes import cores
from tightfit.simulation import simulation as ahead
from tightfit.simulation.simulation import Company, Rehearsal, _halves, play_ahead
from tightfit.simulation.worst_case import Lengths
from tightfit.strategies import STRATEGIES
from tightfit.strategies.recipe import Recipe

CPU = Device("cpu", "this machine's CPU", bf16=True, fp16=False)
LENGTHS = Lengths.uniform(8, 24)


def rehearsal(folder: Path, device: Device = CPU) -> Rehearsal:
    small_config("Bert", 6).save_pretrained(folder)
    return Rehearsal(Company(job_of(folder), device, LABELS, TOKENIZER), LENGTHS, always_padded=True, overhead=0)


@pytest.mark.parametrize("device", [CPU, CARDS["T4 16GB"]], ids=lambda device: device.title)
@pytest.mark.parametrize("words", ["checkpoint adafactor", "checkpoint:every=2 adamw-16bit", "slice:size=2 adafactor"])
def test_spliced_bills_are_those_of_whole_plays(
    tmp_path: Path, device: Device, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _is_as_whole(tmp_path, device, words, monkeypatch)


@pytest.mark.parametrize(
    "words",
    ["checkpoint offload-optimizer", "mixed-precision adafactor", "mixed-precision offload-optimizer adamw-16bit"],
)
def test_so_are_those_of_what_only_cards_do(tmp_path: Path, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _is_as_whole(tmp_path, CARDS["T4 16GB"], words, monkeypatch)


def _is_as_whole(folder: Path, device: Device, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe.parse(words.split())
    assert _halves(recipe) is not None
    spliced = rehearsal(folder, device).bill(recipe)
    monkeypatch.setattr(Rehearsal, "_spliced", lambda *_: None)
    whole = rehearsal(folder, device).bill(recipe)
    assert (spliced.moments, spliced.host) == (whole.moments, whole.host)


@pytest.mark.skipif(cores() < 2, reason="needs two cores and fork")
def test_plays_on_other_cores_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipes = [Recipe.parse(words.split()) for words in ("", "checkpoint", "adafactor", "slice-layers:size=2")]
    elsewhere, here = rehearsal(tmp_path), rehearsal(tmp_path)
    play_ahead(elsewhere, recipes)
    bills = [here.bill(recipe).moments for recipe in recipes]
    assert not elsewhere.unplayed(recipes)
    monkeypatch.setattr(Rehearsal, "_play", lambda *_: pytest.fail("played again"))
    assert [elsewhere.bill(recipe).moments for recipe in recipes] == bills


_SETTINGS = {"slice": ":size=2", "slice-tokens": ":tokens=48", "slice-layers": ":size=2", "max-length": ":tokens=8"}


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_play_can_go_from_process_to_process(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many cores there are: what cannot would end a plan where there are two."""
    skip_unless_installed(name)
    monkeypatch.setattr(ahead, "_rehearsal", rehearsal(tmp_path, CARDS["A100 40GB"]))
    played = ahead._play(Recipe.parse([name + _SETTINGS.get(name, "")]))
    assert (played is None) == (name in ("lora", "freeze"))  # which hold their model: played where they are asked for
    assert (pickle.loads(pickle.dumps(played)) is None) == (played is None)
