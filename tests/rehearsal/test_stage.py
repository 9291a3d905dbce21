"""The rehearsal against the same training on real tensors, moment by moment and kind by kind."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from heads import CONFIGS, small_config
from parts import CPU

from tightfit import Job
from tightfit.data.labels import Labels
from tightfit.recipe import Recipe
from tightfit.rehearsal.bill import moments_of
from tightfit.rehearsal.lengths import Lengths
from tightfit.rehearsal.stage import Performance, play
from tightfit.strategy import Kind

TOKENIZER: Any = SimpleNamespace(pad_token_id=0)
LABELS = Labels(("a", "b", "c"))
LENGTHS = Lengths(train=(24, 24, 20, 20, 20, 16, 9, 5), validation=(22, 18, 7))
RECIPES = [
    "",
    "slice:size=3",
    "checkpoint",
    "adafactor",
    "freeze",
    "freeze:layers=1",
    "mixed-precision",
    "max-length:tokens=8",
    "adamw:fused=false",
    "slice:size=2 checkpoint adafactor",
]


def performance(folder: Path, recipe: str = "", *, shapes_only: bool = True) -> Performance:
    job = Job(model=str(folder), data="none", batch_size=8, max_length=24)
    words = Recipe.parse(recipe.split())
    return play(job, words, CPU, LABELS, TOKENIZER, LENGTHS, shapes_only=shapes_only)


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    small_config(getattr(request, "param", "Bert")).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("recipe", RECIPES)
def test_shapes_alone_take_what_real_tensors_take(folder: Path, recipe: str) -> None:
    foretold = moments_of(performance(folder, recipe).tape)
    found = moments_of(performance(folder, recipe, shapes_only=False).tape)
    assert foretold.keys() == found.keys()
    for moment, kinds in found.items():
        assert sum(foretold[moment].values()) == pytest.approx(sum(kinds.values()), rel=0.01), moment


@pytest.mark.parametrize("folder", [name for name in CONFIGS if name != "T5"], indirect=True)
def test_every_architecture_is_rehearsed(folder: Path) -> None:
    foretold = moments_of(performance(folder).tape)
    found = moments_of(performance(folder, shapes_only=False).tape)
    assert {"load", "forward", "backward", "step", "evaluate", "save", "load-best"} == set(foretold)
    for moment in ("forward", "backward", "step"):
        assert sum(foretold[moment].values()) == pytest.approx(sum(found[moment].values()), rel=0.02), moment


def test_the_bill_shows_four_four_and_eight_bytes_a_parameter(folder: Path) -> None:
    played = performance(folder)
    kinds, count = moments_of(played.tape)["step"], played.parts.parameters
    assert kinds[Kind.WEIGHTS] == pytest.approx(4 * count, rel=0.02)
    assert kinds[Kind.GRADIENTS] == 4 * count
    assert kinds[Kind.OPTIMIZER_STATE] == pytest.approx(8 * count, rel=0.02)


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
    plain, used = (moments_of(performance(folder, words).tape) for words in ("", recipe))
    assert used[moment][kind] < 0.7 * plain[moment][kind]


def test_the_data_decides_the_worst_slice(folder: Path) -> None:
    assert performance(folder, "slice:size=3").shapes.slices == ((3, 24), (3, 20))
    assert performance(folder, "slice:size=3 max-length:tokens=8").shapes.slices == ((3, 8), (3, 8))
    assert performance(folder).shapes.evaluation == (3, 22)


@pytest.mark.parametrize("folder", ["T5"], indirect=True)
def test_a_head_that_looks_at_the_data_is_refused_by_name(folder: Path, tiny_model: Path, reviews: Path) -> None:
    """T5's classifier counts end tokens; a rehearsal has none to count."""
    import shutil

    from tightfit import rehearse
    from tightfit.errors import ModelError

    for file in tiny_model.glob("*token*"):
        shutil.copy(file, folder)
    with pytest.raises(ModelError, match=r"looks at the data.*unique_consecutive"):
        rehearse(Job(model=str(folder), data=str(reviews), max_length=32))
