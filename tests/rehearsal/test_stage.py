"""The rehearsal against the same training on real tensors, moment by moment and kind by kind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from heads import CONFIGS, DROPOUT, small_config
from parts import CPU, skip_unless_installed

from tightfit import Job
from tightfit.data.rows import Labels
from tightfit.simulation.estimate import MOMENTS, moments_of
from tightfit.simulation.op_counts import Work
from tightfit.simulation.scaling import NotAlike, fixed_sizes
from tightfit.simulation.simulate import Extents, play
from tightfit.simulation.simulation import Company, Rehearsal
from tightfit.simulation.timeline import Timeline
from tightfit.simulation.worst_case import Lengths
from tightfit.strategies.base import Kind
from tightfit.strategies.recipe import Recipe

TOKENIZER: Any = SimpleNamespace(pad_token_id=0)
LABELS = Labels(("a", "b", "c"))
EXTENTS = Extents(((3, 24), (2, 20)), ((3, 22),), trunk=((3, 24),))
USUAL = set(MOMENTS) - {"features"}
RECIPES = [
    "",
    "slice:size=3",
    "checkpoint",
    "adafactor",
    "adamw-8bit",
    "freeze",
    "freeze:cache=false",
    "freeze:layers=1",
    "mixed-precision",
    "max-length:tokens=8",
    "adamw:fused=false",
    "slice:size=2 checkpoint adafactor",
    "slice-layers:size=2",
    "step-in-backward",
    "bf16-weights",
    "slice-layers:size=2 adafactor step-in-backward",
    "slice-layers:size=2 adamw-8bit step-in-backward",
    "lora",
    "lora:merge=false,dropout=0.1 checkpoint",
    "lora slice-layers:size=2 adafactor step-in-backward",
]
Moments = dict[str, dict[Kind, int]]


def job_of(folder: Path) -> Job:
    return Job(model=str(folder), data="none", batch_size=8, max_length=24, random_weights=True)


def company_of(folder: Path) -> Company:
    return Company(job_of(folder), CPU, LABELS, TOKENIZER)


def played(folder: Path, recipe: str = "", extents: Extents = EXTENTS, *, shapes_only: bool = True) -> Moments:
    words = Recipe.parse(recipe.split())
    tape = play(job_of(folder), words, CPU, LABELS, TOKENIZER, lambda _: extents, shapes_only=shapes_only).tape
    return moments_of(Timeline.of(tape, fixed_sizes(tape)), CPU, [(s.rows, s.length) for s in tape.sections])


def billed(folder: Path, recipe: str, lengths: Lengths) -> Moments:
    return Rehearsal(company_of(folder), lengths).bill(Recipe.parse(recipe.split())).moments


def total(kinds: dict[Kind, int]) -> int:
    return sum(kinds.values())


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    small_config(getattr(request, "param", "Bert")).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("recipe", RECIPES)
def test_shapes_alone_take_what_real_tensors_take(folder: Path, recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "adamw-8bit" in recipe:
        skip_unless_installed("adamw-8bit")
        monkeypatch.setattr("tightfit.optimizers.adamw_8bit._SMALL", 256)  # the model is tiny
    foretold, found = played(folder, recipe), played(folder, recipe, shapes_only=False)
    assert set(foretold) == set(found) == (set(MOMENTS) if recipe == "freeze" else USUAL)
    for moment, kinds in found.items():
        assert total(foretold[moment]) == pytest.approx(total(kinds), rel=0.01), moment


@pytest.mark.parametrize("recipe", ["", "attention", "attention slice-layers:size=2", "attention checkpoint"])
def test_dropout_takes_what_it_takes_on_real_tensors(tmp_path: Path, recipe: str) -> None:
    small_config("Bert", **DROPOUT).save_pretrained(tmp_path)
    foretold, found = played(tmp_path, recipe), played(tmp_path, recipe, shapes_only=False)
    for moment in ("forward", "backward"):
        assert total(foretold[moment]) == pytest.approx(total(found[moment]), rel=0.02), moment


@pytest.mark.parametrize("padded", [True, False])
def test_a_causal_model_keeps_no_scores_with_a_mask_or_without(tmp_path: Path, padded: bool) -> None:
    small_config("GPT2", attn_pdrop=0.1).save_pretrained(tmp_path)
    extents = replace(EXTENTS, padded=padded)
    foretold, found = (played(tmp_path, "attention", extents, shapes_only=alone) for alone in (True, False))
    for moment in ("forward", "backward"):
        assert total(foretold[moment]) == pytest.approx(total(found[moment]), rel=0.02), moment


@pytest.mark.parametrize("folder", list(CONFIGS), indirect=True)
def test_every_architecture_is_rehearsed(folder: Path) -> None:
    foretold, found = played(folder), played(folder, shapes_only=False)
    assert set(foretold) == USUAL
    for moment in ("forward", "backward", "step"):
        assert total(foretold[moment]) == pytest.approx(total(found[moment]), rel=0.02), moment


def test_a_play_whose_time_cannot_be_told_holds_for_itself_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unlike(*given: object) -> None:
        raise NotAlike

    assert Rehearsal(company_of(folder), Lengths.uniform(8, 23))._play(Recipe()).for_all
    monkeypatch.setattr(Work, "per_extent", unlike)
    assert not Rehearsal(company_of(folder), Lengths.uniform(8, 23))._play(Recipe()).for_all


@pytest.mark.parametrize("folder", list(CONFIGS), indirect=True)
@pytest.mark.parametrize(
    "recipe",
    [
        "",
        "slice:size=3",
        "slice:size=1 checkpoint",
        "slice:size=2 max-length:tokens=11",
        "slice:size=2 freeze",
        "slice-tokens:tokens=60",
        "step-in-backward",
        "checkpoint adafactor step-in-backward",
    ],
)
def test_one_play_makes_the_bill_for_every_slice(folder: Path, recipe: str) -> None:
    lengths = Lengths.uniform(8, 23)
    parts = Rehearsal(company_of(folder), lengths)._play(Recipe.parse(recipe.split()))
    assert parts.for_all
    shapes = lengths.worst(parts.parts)
    exact = played(folder, recipe, Extents(shapes.slices, [shapes.evaluation], shapes.padded, trunk=shapes.trunk))
    foretold = billed(folder, recipe, lengths)
    for moment, kinds in exact.items():
        assert total(foretold[moment]) == pytest.approx(total(kinds), rel=0.01), moment


@pytest.mark.parametrize("tokens", [23, 48, 70])
@pytest.mark.parametrize("recipe", ["", "attention"])
def test_of_slices_by_tokens_the_largest_is_billed(folder: Path, recipe: str, tokens: int) -> None:
    """Few long texts or many short ones, whichever takes more."""
    batches = np.array([[23] * 8, [12] * 8, [20, 20, 7, 7, 6, 5, 4, 3]])
    lengths, words = Lengths(batches, (23,) * 8), f"{recipe} slice-tokens:tokens={tokens}"
    parts = Rehearsal(company_of(folder), lengths).played(Recipe.parse(words.split()))[1]
    slices, evaluation = set(lengths.slices(parts)), [lengths.worst(parts).evaluation]
    exact = [played(folder, recipe, Extents([extent, extent], evaluation)) for extent in slices]
    foretold = billed(folder, words, lengths)
    for moment in ("forward", "backward"):
        largest = max(total(kinds[moment]) for kinds in exact)
        assert total(foretold[moment]) == pytest.approx(largest, rel=0.01), moment


def test_the_bill_shows_four_four_and_eight_bytes_a_parameter(folder: Path) -> None:
    rehearsal = Rehearsal(company_of(folder), Lengths.uniform(8, 24))
    bill = rehearsal.bill(Recipe())
    kinds = bill.moments["step"]
    assert kinds[Kind.WEIGHTS] == pytest.approx(4 * bill.parameters, rel=0.02)
    assert kinds[Kind.GRADIENTS] == 4 * bill.parameters
    assert kinds[Kind.OPTIMIZER_STATE] == pytest.approx(8 * bill.parameters, rel=0.02)


@pytest.mark.parametrize(
    ("recipe", "kind", "moment"),
    [
        ("slice:size=2", Kind.ACTIVATIONS, "forward"),
        ("checkpoint", Kind.ACTIVATIONS, "forward"),
        ("adafactor", Kind.OPTIMIZER_STATE, "step"),
        ("freeze", Kind.GRADIENTS, "step"),
        ("max-length:tokens=8", Kind.ACTIVATIONS, "forward"),
    ],
)
def test_each_rung_saves_where_it_says(folder: Path, recipe: str, kind: Kind, moment: str) -> None:
    lengths = Lengths.uniform(8, 24)
    plain, used = (billed(folder, words, lengths) for words in ("", recipe))
    assert used[moment][kind] < 0.7 * plain[moment][kind]


def test_what_cannot_be_rehearsed_can_be_tried_out(tmp_path: Path, tiny_model: Path, reviews: Path) -> None:
    """A mixture of experts runs a kernel that knows no fp32 without data."""
    import shutil

    from transformers import MixtralConfig

    from tightfit import rehearse
    from tightfit.errors import ModelError

    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = MixtralConfig(vocab_size=99, num_key_value_heads=2, num_local_experts=2, **shape)
    config.save_pretrained(tmp_path / "experts")
    for file in tiny_model.glob("*token*"):
        shutil.copy(file, tmp_path / "experts")
    job = Job(model=str(tmp_path / "experts"), data=str(reviews), max_length=32)
    with pytest.raises(ModelError, match=r"cannot be rehearsed: .*--probe"):
        rehearse(job)
    bill = rehearse(job, probe=True)
    assert bill.moments["step"][Kind.OPTIMIZER_STATE] == pytest.approx(8 * bill.parameters, rel=0.02)


def test_the_operation_that_looks_at_the_data_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import BertForSequenceClassification

    from tightfit.errors import ModelError

    def forward(self: Any, input_ids: Any, **rest: Any) -> Any:
        return self.classifier(self.dropout(input_ids.nonzero().float()))

    small_config("Bert").save_pretrained(tmp_path)
    monkeypatch.setattr(BertForSequenceClassification, "forward", forward)
    with pytest.raises(ModelError, match=r"looks at the data \(aten.nonzero.default\)"):
        billed(tmp_path, "", Lengths.uniform(8, 24))


@pytest.mark.parametrize("folder", ["Bert", "T5"], indirect=True)
def test_a_mask_is_there_only_where_texts_differ_in_length(folder: Path) -> None:
    """As in a real run: transformers drops a mask of ones."""
    import numpy as np

    alike, unlike = Lengths.uniform(8, 24), Lengths(np.array([[24, 24, 24, 24, 9, 9, 9, 8]]), (24,) * 8)
    assert total(billed(folder, "", alike)["forward"]) < total(billed(folder, "", unlike)["forward"])
    sliced = [
        total(billed(folder, "slice:size=4 max-length:tokens=8", lengths)["forward"]) for lengths in (alike, unlike)
    ]
    assert sliced[0] == sliced[1]


def test_bills_do_not_depend_on_the_order_they_are_made_in(folder: Path) -> None:
    rehearsal = Rehearsal(company_of(folder), Lengths.uniform(8, 24))
    recipes = [Recipe.parse(words) for words in (["slice:size=2"], [], ["max-length:tokens=8"], ["slice:size=2"])]
    moments = [rehearsal.bill(recipe).moments for recipe in recipes]
    assert moments[0] == moments[3]
    assert total(moments[0]["forward"]) < total(moments[1]["forward"])
    assert len(rehearsal._played) == 1
