"""One step as it goes, and whose the largest tensors are: the same from shallow plays and from whole ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from heads import small_config
from test_depth import company
from test_stage import LABELS, TOKENIZER, job_of

from tightfit.device import CARDS, Device
from tightfit.simulation.profile import Course
from tightfit.simulation.simulation import Company, Rehearsal
from tightfit.simulation.tracer import any_layer
from tightfit.simulation.worst_case import Lengths
from tightfit.strategies.base import Kind
from tightfit.strategies.recipe import Recipe

CPU = Device("cpu", "this machine's CPU", bf16=True, fp16=False)
LENGTHS = Lengths.uniform(8, 24)
RECIPES = [
    "",
    "slice:size=2",
    "slice:size=2 checkpoint adafactor",
    "slice-layers:size=2 adafactor step-in-backward",
    "lora checkpoint",
    "freeze:cache=false",
]


def rehearsal(folder: Path, device: Device = CPU, architecture: str = "Bert") -> Rehearsal:
    small_config(architecture, 6).save_pretrained(folder)
    return Rehearsal(Company(job_of(folder), device, LABELS, TOKENIZER), LENGTHS, always_padded=True, overhead=0)


def course(makes: Rehearsal, words: str) -> Course:
    found = makes.course(Recipe.parse(words.split()))
    assert found is not None
    return found


def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is told from shallow plays, nothing is spliced."""
    monkeypatch.setattr(Company, "_depths", lambda *_: [])
    monkeypatch.setattr(Rehearsal, "_spliced", lambda *_: None)


@pytest.mark.parametrize("words", RECIPES)
@pytest.mark.parametrize("architecture", ["Bert", "GPT2"])
def test_names_of_shallow_plays_are_those_of_the_whole(
    tmp_path: Path, words: str, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shallow = course(rehearsal(tmp_path, architecture=architecture), words)
    whole(monkeypatch)
    deep = course(rehearsal(tmp_path, architecture=architecture), words)
    assert set(shallow.largest) == set(deep.largest)
    assert shallow.moment == deep.moment


@pytest.mark.parametrize("device", [CPU, CARDS["T4 16GB"]], ids=lambda device: device.title)
@pytest.mark.parametrize("words", RECIPES)
def test_the_highest_point_of_the_step_is_in_the_bill(tmp_path: Path, device: Device, words: str) -> None:
    makes = rehearsal(tmp_path, device)
    bill, found = makes.bill(Recipe.parse(words.split())), course(makes, words)
    highest = max(sum(sizes) for sizes in zip(*found.kinds.values(), strict=True))
    moments = {name: sum(kinds.values()) - kinds[Kind.ALLOCATOR] for name, kinds in bill.moments.items()}
    assert highest == max(moments[name] for name in ("forward", "backward", "step"))
    assert {"forward", "backward", "step"} <= {stretch.moment for stretch in found.stretches}
    assert all(len(sizes) < 500 for sizes in found.kinds.values())


def test_shapes_are_those_of_the_batch(tmp_path: Path) -> None:
    """What was played had 6 and 4 rows; the batch has 8 of 24 tokens."""
    makes = rehearsal(tmp_path)
    config: Any = makes.company._config
    wide = next(each for each in course(makes, "").largest if each.owner and each.owner.endswith("intermediate_act_fn"))
    assert wide.shape == (8, 24, config.intermediate_size)
    assert wide.size == 8 * 24 * config.intermediate_size * 4
    assert wide.count == config.num_hidden_layers
    assert wide.kind is Kind.ACTIVATIONS


def test_every_tensor_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tightfit.simulation.profile._LARGEST", 10**6)
    makes = rehearsal(tmp_path)
    found, bill = course(makes, ""), makes.bill(Recipe())
    for kind, size in bill.moments[bill.moment].items():
        if kind is not Kind.ALLOCATOR:
            assert sum(each.size * each.count for each in found.largest if each.kind is kind) == size
    unnamed = [each for each in found.largest if each.owner is None and each.kind is not Kind.INPUTS]
    assert sum(each.size * each.count for each in unnamed) < 0.01 * bill.peak


def test_weights_gradients_and_state_have_the_names_of_parameters(tmp_path: Path) -> None:
    makes = company(tmp_path, "Bert")
    tape = makes._play(Recipe(), lambda parts: Rehearsal(makes, LENGTHS, overhead=0)._worst(parts)).tape
    for kind in (Kind.WEIGHTS, Kind.GRADIENTS, Kind.OPTIMIZER_STATE):
        owners = [block.owner for block in tape.blocks if block.kind is kind and block.size > 64]
        assert owners
        assert all(isinstance(owner, str) and owner.startswith(("bert.", "classifier.")) for owner in owners)


def test_a_name_for_any_layer() -> None:
    assert any_layer("encoder.layer.3.output") == "encoder.layer.*.output"
    assert any_layer("h.11") == "h.*"
    assert any_layer("conv1.weight") == "conv1.weight"
