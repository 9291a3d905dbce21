"""Tiled attention in models of every architecture."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from heads import CONFIGS, DROPOUT, build, gradients, make_batch
from parts import ROWS, parts_of

from tightfit.device import find_gpu
from tightfit.errors import RecipeError
from tightfit.strategies.tiled_attention import TiledAttention

NOT_REPLACEABLE = ("DebertaV2", "DebertaV3", "MPNet", "T5")


def gradients_of(*specs: str, **model: float) -> torch.Tensor:
    parts = parts_of(*specs, model=build("Bert", **model))
    torch.manual_seed(5)
    parts.model(**make_batch(ROWS)).loss.backward()
    return gradients(parts.model)


@pytest.mark.parametrize("architecture", [name for name in CONFIGS if name not in NOT_REPLACEABLE])
def test_without_dropout_gradients_are_the_same_in_every_architecture(architecture: str) -> None:
    batch, baseline = make_batch(ROWS), build(architecture)
    baseline(**batch).loss.backward()
    expected = gradients(baseline)
    parts = parts_of("tiled-attention", model=build(architecture))
    parts.model(**batch).loss.backward()
    assert (gradients(parts.model) - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.parametrize("architecture", NOT_REPLACEABLE)
def test_attention_that_cannot_be_replaced_is_rejected(architecture: str) -> None:
    with pytest.raises(RecipeError, match=r"finds no attention in \w+ that can be replaced: leave it out\.$"):
        parts_of("tiled-attention", model=build(architecture))


def test_recomputation_uses_the_same_dropout_mask() -> None:
    once = gradients_of("tiled-attention", **DROPOUT)
    assert torch.allclose(gradients_of("tiled-attention", "gradient-checkpointing", **DROPOUT), once, atol=1e-7)
    assert torch.allclose(gradients_of("tiled-attention", **DROPOUT), once)
    assert not torch.allclose(gradients_of("tiled-attention"), once)


def test_dropout_changes_the_loss_as_much_as_that_of_torch() -> None:
    """The same model and batch with many masks: the losses have the same mean and spread."""

    def losses(*specs: str) -> torch.Tensor:
        model: Any = parts_of(*specs, model=build("Bert", **DROPOUT)).model
        batch = make_batch(ROWS)
        torch.manual_seed(0)
        with torch.no_grad():
            return torch.tensor([float(model(**batch).loss) for _ in range(400)])

    ours, theirs = losses("tiled-attention"), losses()
    noise = float(theirs.std()) / 400**0.5
    assert abs(float(ours.mean() - theirs.mean())) < 4 * 2**0.5 * noise
    assert float(ours.std()) == pytest.approx(float(theirs.std()), rel=0.2)


def test_on_a_gpu_the_fused_kernel_of_torch_is_used() -> None:
    gpu = find_gpu("RTX 3060 12GB")
    assert gpu is not None
    parts = TiledAttention().apply(replace(parts_of(), device=gpu))
    assert parts.model.config._attn_implementation == "sdpa"
