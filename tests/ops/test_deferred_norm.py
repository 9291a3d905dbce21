"""A norm that ends a layer is the next one's to do: fewer products in a second run, the same gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from heads import DROPOUT, build, gradients
from parts import batch_of, parts_of
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import OPTConfig, OPTForSequenceClassification

from tightfit.ops.chunked_linear import DeferredNorm, Handed, Missed, find_last_norm

LAYERS, PIECES = 3, 4


class LastProducts(TorchDispatchMode):
    """Counts the products that a layer of BERT ends with: from its inner width to its outer."""

    made = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket is torch.ops.aten.addmm and tuple(args[2].shape) == (64, 32):
            self.made += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("chance", [{}, DROPOUT], ids=["without dropout", "with dropout"])
def test_a_second_run_ends_before_the_last_product(chance: dict[str, float]) -> None:
    parts = parts_of("tiled-attention", "chunked-layers:size=2", model=build("Bert", layers=LAYERS, **chance))
    batch = {**batch_of(parts, 0), "attention_mask": torch.ones_like(batch_of(parts, 0)["attention_mask"])}
    with LastProducts() as products:
        parts.model(**batch).loss.backward()
    assert products.made == (LAYERS + 1) * PIECES  # once each, and again only in the last layer, which keeps its norm


def test_evaluation_is_the_plain_one() -> None:
    parts, plain = parts_of("chunked-layers:size=2", model=build("Bert", layers=LAYERS)), build("Bert", layers=LAYERS)
    batch = batch_of(parts, 0)
    parts.model(**batch).loss.backward()  # and what a training has learnt of the norms does not show
    assert torch.equal(parts.model.eval()(**batch).logits, plain.eval()(**batch).logits)


def test_a_norm_in_the_middle_of_a_layer_stays_there() -> None:
    """OPT names last what it does before its inner layers."""

    def opt() -> OPTForSequenceClassification:
        torch.manual_seed(0)
        sizes = {"hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 64, "num_attention_heads": 2, "dropout": 0.0}
        return OPTForSequenceClassification(
            OPTConfig(vocab_size=99, num_hidden_layers=LAYERS, use_cache=False, **sizes)
        ).train()

    plain, parts = opt(), parts_of("chunked-layers:size=2", model=opt())
    batch = batch_of(parts, 0)
    for model in (plain, parts.model):
        model.config.pad_token_id = 0
        model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=batch["labels"] % 2)[
            0
        ].backward()
    expected = gradients(plain)
    assert (gradients(parts.model) - expected).norm() <= 1e-5 * expected.norm()
    found = [norm for norm in map(last_norm_of, parts.model.model.decoder.layers[:-1]) if norm]
    assert found
    assert not any(norm.is_left for norm in found)


def last_norm_of(layer: nn.Module) -> DeferredNorm | None:
    norms = [part.forward for part in layer.modules() if isinstance(part, nn.LayerNorm)]
    return next((norm for norm in norms if isinstance(norm, DeferredNorm)), None)


class Layer(nn.Module):
    def __init__(self, *, norm_comes_last: bool) -> None:
        super().__init__()
        first, last = ("norm", "linear")[:: -1 if norm_comes_last else 1]
        for name in (first, last):
            self.add_module(name, nn.LayerNorm(4) if name == "norm" else nn.Linear(4, 4))


def test_only_what_comes_last_is_looked_at() -> None:
    assert find_last_norm(Layer(norm_comes_last=False)) is None
    layer = Layer(norm_comes_last=True)
    assert find_last_norm(layer) is not None
    assert find_last_norm(layer) is None  # somebody has changed it already


def test_a_norm_that_was_passed_by_is_made_up_for_or_missed() -> None:
    states = torch.randn(2, 4)
    norm = find_last_norm(Layer(norm_comes_last=True))
    assert norm is not None
    made_up, rest = norm.look((norm(states), "rest"))
    assert torch.equal(made_up, norm.forward(states))
    assert rest == "rest"
    assert not norm.is_left
    other = find_last_norm(Layer(norm_comes_last=True))
    assert other is not None
    with pytest.raises(Missed):
        other.look(other(states) + 1)


def test_states_that_somebody_changed_on_the_way_are_refused() -> None:
    norm, handed, states = find_last_norm(Layer(norm_comes_last=True)), Handed(), torch.randn(2, 4)
    assert norm is not None
    norm.look(norm(states))
    handed.on(states, norm)
    assert handed.to_next(states) is norm
    assert handed.to_next(states) is None
    handed.on(states, norm)
    with pytest.raises(ValueError, match="between layers"):
        handed.to_next(states + 1)


def test_a_batch_that_failed_on_its_way_leaves_nothing_to_the_next() -> None:
    """As when memory runs out in a layer and the batch is done again."""
    parts = parts_of("chunked-layers:size=2", model=build("Bert", layers=LAYERS))
    batch, second = batch_of(parts, 0), parts.model.bert.encoder.layer[1]
    expected = parts.model(**batch).loss
    working, second.attention.forward = second.attention.forward, None
    with pytest.raises(TypeError):
        parts.model(**batch)
    second.attention.forward = working
    assert torch.equal(parts.model(**batch).loss, expected)
