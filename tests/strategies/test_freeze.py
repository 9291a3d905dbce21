"""Freezing by every way of naming, on every architecture."""

from __future__ import annotations

import pytest
from heads import CONFIGS, build, make_batch

from tightfit import freeze, frozen_parameters
from tightfit.errors import RecipeError


@pytest.mark.parametrize("architecture", CONFIGS)
def test_the_encoder_freezes_and_the_head_trains(architecture: str) -> None:
    model = build(architecture)
    said = freeze(model)
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trained
    assert not any(name.startswith(f"{model.base_model_prefix}.") for name in trained)
    assert "still train" in said
    model(**make_batch(4)).loss.backward()
    assert all(p.grad is None for p in model.base_model.parameters())


@pytest.mark.parametrize("architecture", [name for name in CONFIGS if name != "Albert"])
def test_the_first_layers_take_the_embeddings_along(architecture: str) -> None:
    model = build(architecture)
    freeze(model, layers=1)
    words = model.get_input_embeddings().weight
    assert not words.requires_grad
    assert any(p.requires_grad for p in model.base_model.parameters()), "the second layer should train"


def test_layers_without_embeddings() -> None:
    model = build("Bert")
    freeze(model, layers=1, embeddings=False)
    assert model.get_input_embeddings().weight.requires_grad
    assert all(name.startswith("bert.encoder.layer.0.") for name in frozen_parameters(model))


def test_embeddings_alone() -> None:
    model = build("Bert")
    freeze(model, embeddings=True)
    assert {name.split(".")[1] for name in frozen_parameters(model)} == {"embeddings"}


def test_by_name() -> None:
    model = build("Bert")
    said = freeze(model, pattern="*.attention.*")
    assert all(".attention." in name for name in frozen_parameters(model))
    assert "matching '*.attention.*'" in said


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"layers": 3}, "more than the 2 layers"),
        ({"pattern": "*nowhere*"}, "matches no parameter"),
        ({"pattern": "*"}, "nothing to train"),
    ],
)
def test_what_cannot_be_frozen(settings: dict[str, object], says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        freeze(build("Bert"), **settings)  # type: ignore[arg-type]
