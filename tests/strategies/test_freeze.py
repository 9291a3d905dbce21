"""Freezing the encoder, layers, embeddings and parameters by name, on every architecture."""

from __future__ import annotations

import pytest
from heads import CONFIGS, build, make_batch

from tightfit import freeze, frozen_parameters
from tightfit.errors import RecipeError


@pytest.mark.parametrize("architecture", CONFIGS)
def test_the_encoder_freezes_and_the_head_trains(architecture: str) -> None:
    model = build(architecture)
    summary = freeze(model)
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trained
    assert not any(name.startswith(f"{model.base_model_prefix}.") for name in trained)
    assert "still train" in summary
    model(**make_batch(4)).loss.backward()
    assert all(p.grad is None for p in model.base_model.parameters())


@pytest.mark.parametrize("architecture", [name for name in CONFIGS if name != "Albert"])
def test_freezing_the_first_layers_freezes_the_embeddings(architecture: str) -> None:
    model = build(architecture)
    freeze(model, layers=1)
    assert not model.get_input_embeddings().weight.requires_grad
    assert any(p.requires_grad for p in model.base_model.parameters()), "the second layer should train"


def test_layers_can_be_frozen_without_the_embeddings() -> None:
    model = build("Bert")
    freeze(model, layers=1, embeddings=False)
    assert model.get_input_embeddings().weight.requires_grad
    assert all(name.startswith("bert.encoder.layer.0.") for name in frozen_parameters(model))


def test_embeddings_can_be_frozen_alone() -> None:
    model = build("Bert")
    freeze(model, embeddings=True)
    assert {name.split(".")[1] for name in frozen_parameters(model)} == {"embeddings"}


def test_parameters_can_be_frozen_by_name() -> None:
    model = build("Bert")
    summary = freeze(model, pattern="*.attention.*")
    assert all(".attention." in name for name in frozen_parameters(model))
    assert "matching '*.attention.*'" in summary


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": 3}, "more than the 2 layers"),
        ({"pattern": "*nowhere*"}, "matches no parameter"),
        ({"pattern": "*"}, "nothing to train"),
    ],
)
def test_invalid_settings_are_rejected(settings: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        freeze(build("Bert"), **settings)  # type: ignore[arg-type]
