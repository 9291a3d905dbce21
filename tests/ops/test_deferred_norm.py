"""A layer's last norm is deferred to the next layer: fewer products in the recomputation, the same gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from heads import DROPOUT, build, gradients
from parts import batch_of, parts_of
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import OPTConfig, OPTForSequenceClassification

from tightfit.ops.deferred_norm import DeferredNorm, HiddenStatesChanged, NormNotLast, PendingNorm, find_last_norm

LAYERS, CHUNKS = 3, 4


class LastProducts(TorchDispatchMode):
    """Counts the last product of each BERT layer: from its intermediate size to its hidden size."""

    made = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket is torch.ops.aten.addmm and tuple(args[2].shape) == (64, 32):
            self.made += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dropout", [{}, DROPOUT], ids=["without dropout", "with dropout"])
def test_recomputation_stops_before_the_last_product(dropout: dict[str, float]) -> None:
    parts = parts_of("tiled-attention", "chunked-layers:size=2", model=build("Bert", layers=LAYERS, **dropout))
    batch = {**batch_of(parts, 0), "attention_mask": torch.ones_like(batch_of(parts, 0)["attention_mask"])}
    with LastProducts() as products:
        parts.model(**batch).loss.backward()
    assert products.made == (LAYERS + 1) * CHUNKS  # recomputed only in the last layer, which keeps its norm


def test_evaluation_equals_that_of_an_unchanged_model() -> None:
    parts = parts_of("chunked-layers:size=2", model=build("Bert", layers=LAYERS))
    baseline = build("Bert", layers=LAYERS)
    batch = batch_of(parts, 0)
    parts.model(**batch).loss.backward()  # defers the norms
    assert torch.equal(parts.model.eval()(**batch).logits, baseline.eval()(**batch).logits)


def test_a_norm_in_the_middle_of_a_layer_is_not_deferred() -> None:
    """OPT registers last a norm that it applies before its feed-forward layers."""

    def opt() -> OPTForSequenceClassification:
        torch.manual_seed(0)
        sizes = {"hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 64, "num_attention_heads": 2, "dropout": 0.0}
        return OPTForSequenceClassification(
            OPTConfig(vocab_size=99, num_hidden_layers=LAYERS, use_cache=False, **sizes)
        ).train()

    baseline, parts = opt(), parts_of("chunked-layers:size=2", model=opt())
    batch = batch_of(parts, 0)
    for model in (baseline, parts.model):
        model.config.pad_token_id = 0
        model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=batch["labels"] % 2)[
            0
        ].backward()
    expected = gradients(baseline)
    assert (gradients(parts.model) - expected).norm() <= 1e-5 * expected.norm()
    found = [norm for norm in map(last_norm_of, parts.model.model.decoder.layers[:-1]) if norm]
    assert found
    assert not any(norm.deferred for norm in found)


def last_norm_of(layer: nn.Module) -> DeferredNorm | None:
    norms = [part.forward for part in layer.modules() if isinstance(part, nn.LayerNorm)]
    return next((norm for norm in norms if isinstance(norm, DeferredNorm)), None)


class Layer(nn.Module):
    def __init__(self, *, norm_comes_last: bool) -> None:
        super().__init__()
        first, last = ("norm", "linear")[:: -1 if norm_comes_last else 1]
        for name in (first, last):
            self.add_module(name, nn.LayerNorm(4) if name == "norm" else nn.Linear(4, 4))


def test_only_a_last_norm_is_found() -> None:
    assert find_last_norm(Layer(norm_comes_last=False)) is None
    layer = Layer(norm_comes_last=True)
    assert find_last_norm(layer) is not None
    assert find_last_norm(layer) is None  # its forward is already replaced


def test_a_norm_skipped_by_mistake_is_applied_late_or_raises() -> None:
    states = torch.randn(2, 4)
    norm = find_last_norm(Layer(norm_comes_last=True))
    assert norm is not None
    applied, rest = norm.check_output((norm(states), "rest"))
    assert torch.equal(applied, norm.forward(states))
    assert rest == "rest"
    assert not norm.deferred
    other = find_last_norm(Layer(norm_comes_last=True))
    assert other is not None
    with pytest.raises(NormNotLast):
        other.check_output(other(states) + 1)


def test_hidden_states_changed_between_layers_are_rejected() -> None:
    norm, pending, states = find_last_norm(Layer(norm_comes_last=True)), PendingNorm(), torch.randn(2, 4)
    assert norm is not None
    norm.check_output(norm(states))
    pending.put(states, norm)
    assert pending.take(states) is norm
    assert pending.take(states) is None
    pending.put(states, norm)
    with pytest.raises(HiddenStatesChanged):
        pending.take(states + 1)


def test_a_failed_batch_leaves_no_pending_norm() -> None:
    """As when memory runs out in a layer and the batch is run again."""
    parts = parts_of("chunked-layers:size=2", model=build("Bert", layers=LAYERS))
    batch, second = batch_of(parts, 0), parts.model.bert.encoder.layer[1]
    expected = parts.model(**batch).loss
    original, second.attention.forward = second.attention.forward, None
    with pytest.raises(TypeError):
        parts.model(**batch)
    second.attention.forward = original
    assert torch.equal(parts.model(**batch).loss, expected)
