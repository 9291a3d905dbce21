"""The attention that a recipe chooses, in models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from heads import CONFIGS, DROPOUT, build, gradients, make_batch
from parts import ROWS, parts_of

from tightfit.device import find_gpu
from tightfit.errors import RecipeError
from tightfit.strategies.tiled_attention import Attention

OWN_ATTENTION = ("DebertaV2", "DebertaV3", "MPNet", "T5")


def learn(*words: str, **model: float) -> torch.Tensor:
    parts = parts_of(*words, model=build("Bert", **model))
    torch.manual_seed(5)
    parts.model(**make_batch(ROWS)).loss.backward()
    return gradients(parts.model)


@pytest.mark.parametrize("architecture", [name for name in CONFIGS if name not in OWN_ATTENTION])
def test_without_dropout_every_architecture_learns_the_same(architecture: str) -> None:
    batch, plain = make_batch(ROWS), build(architecture)
    plain(**batch).loss.backward()
    expected = gradients(plain)
    parts = parts_of("tiled-attention", model=build(architecture))
    parts.model(**batch).loss.backward()
    assert (gradients(parts.model) - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.parametrize("architecture", OWN_ATTENTION)
def test_an_attention_of_its_own_is_left_alone(architecture: str) -> None:
    with pytest.raises(RecipeError, match=r"finds no attention in \w+ that can be changed: leave it out\.$"):
        parts_of("tiled-attention", model=build(architecture))


def test_a_second_run_meets_the_same_dropout() -> None:
    once = learn("tiled-attention", **DROPOUT)
    assert torch.allclose(learn("tiled-attention", "gradient-checkpointing", **DROPOUT), once, atol=1e-7)
    assert torch.allclose(learn("tiled-attention", **DROPOUT), once)
    assert not torch.allclose(learn("tiled-attention"), once)


def test_its_dropout_is_as_noisy_as_torchs() -> None:
    """The same model, the same batch, many draws: losses spread alike around the same mean."""

    def losses(*words: str) -> torch.Tensor:
        model: Any = parts_of(*words, model=build("Bert", **DROPOUT)).model
        batch = make_batch(ROWS)
        torch.manual_seed(0)
        with torch.no_grad():
            return torch.tensor([float(model(**batch).loss) for _ in range(400)])

    ours, theirs = losses("tiled-attention"), losses()
    noise = float(theirs.std()) / 400**0.5
    assert abs(float(ours.mean() - theirs.mean())) < 4 * 2**0.5 * noise
    assert float(ours.std()) == pytest.approx(float(theirs.std()), rel=0.2)


def test_on_a_card_torch_does_it() -> None:
    card = find_gpu("RTX 3060 12GB")
    assert card is not None
    parts = Attention().apply(replace(parts_of(), device=card))
    assert parts.model.config._attn_implementation == "sdpa"
