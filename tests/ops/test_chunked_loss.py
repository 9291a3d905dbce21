"""The loss of a language-model head in chunks: loss and gradients are those of the whole batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf
from heads import build, gradients, make_batch, small_config
from memory import LiveBytes

from tightfit.engine.micro_batch_loss import model_loss, weighted_micro_batches
from tightfit.engine.step import train_batch
from tightfit.errors import RecipeError
from tightfit.ops.chunked_loss import chunk_loss

TOKENS = 7  # does not divide the number of labels
_GEMMA = {"num_key_value_heads": 2, "head_dim": 16, "query_pre_attn_scalar": 16, "final_logit_softcapping": 3.0}
_BART = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "dropout": 0.0}
_BART_DECODER = {"decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "eos_token_id": 2}
_SEQ2SEQ = {**_BART, **_BART_DECODER, "vocab_size": 99, "pad_token_id": 0, "decoder_start_token_id": 2}
_DECODER = {"num_key_value_heads": 2, "vocab_size": 99, "hidden_size": 32, "intermediate_size": 64} | {
    "num_hidden_layers": 2, "num_attention_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def seq2seq(config: Any) -> Any:
    return hf.AutoModelForSeq2SeqLM.from_config(config)


def causal(config: Any) -> Any:
    return hf.AutoModelForCausalLM.from_config(config)


HEADS = {
    "tied": ("causal", lambda: build("Llama", "causal", tie_word_embeddings=True)),
    "untied": ("causal", lambda: build("Qwen2", "causal", tie_word_embeddings=False)),
    "GPT-2": ("causal", lambda: build("GPT2", "causal")),
    "softcapping": ("causal", lambda: causal(hf.Gemma2Config(**{**_DECODER, **_GEMMA}))),
    "scaled": ("causal", lambda: causal(hf.GraniteConfig(**_DECODER, logits_scaling=4.0))),
    "multiplied": ("causal", lambda: causal(hf.CohereConfig(**_DECODER, logit_scale=0.3))),
    "T5": ("seq2seq", lambda: build("T5", "seq2seq")),
    "T5, tied": ("seq2seq", lambda: build("T5", "seq2seq", tie_word_embeddings=True)),
    "BART": ("seq2seq", lambda: with_bias(seq2seq(hf.BartConfig(**_SEQ2SEQ)))),
    "Marian": ("seq2seq", lambda: with_bias(seq2seq(hf.MarianConfig(**_SEQ2SEQ)))),
    "masked": ("causal", lambda: hf.AutoModelForMaskedLM.from_config(small_config("Bert"))),
    "masked, ModernBERT": ("causal", lambda: hf.AutoModelForMaskedLM.from_config(small_config("ModernBert"))),
}


def with_bias(model: Any) -> Any:
    """A bias of the logits that is not zero."""
    model.final_logits_bias.normal_()
    return model


def loss_and_gradients(model: Any, batch: dict[str, torch.Tensor], rows: int = 8) -> tuple[float, torch.Tensor]:
    micro_batches = weighted_micro_batches(model, batch, rows)
    loss = train_batch(model, micro_batches, model_loss, torch.Tensor.backward, lambda name: torch.enable_grad())
    return float(loss), gradients(model)


@pytest.mark.parametrize("rows", [8, 3], ids=["whole batch", "micro-batches"])
@pytest.mark.parametrize("name", HEADS)
def test_loss_and_gradients_are_those_of_the_whole_batch(name: str, rows: int) -> None:
    kind, make = HEADS[name]
    torch.manual_seed(0)
    model, batch = make().train(), make_batch(8, kind)
    assert (batch["labels"] == -100).any(), "labels are ragged"
    loss, expected = loss_and_gradients(model, batch)
    chunk_loss(model, model.get_output_embeddings(), TOKENS)
    chunked, found = loss_and_gradients(model, batch, rows)
    assert chunked == pytest.approx(loss, rel=1e-6)
    assert float((found - expected).norm() / expected.norm()) < 1e-5


@pytest.mark.parametrize("trained", ["head only", "all but the head"])
def test_only_what_trains_gets_a_gradient(trained: str) -> None:
    model, batch = build("Llama", "causal", tie_word_embeddings=False), make_batch(4, "causal")
    model.requires_grad_(trained != "head only")
    model.lm_head.requires_grad_(trained == "head only")
    _, expected = loss_and_gradients(model, batch)
    chunk_loss(model, model.lm_head, TOKENS)
    _, found = loss_and_gradients(model, batch)
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-7)


def test_in_16_bits_it_differs_from_the_whole_batch_as_little_as_fp32_does() -> None:
    model, batch = build("Llama", "causal"), make_batch(8, "causal")
    _, exact = loss_and_gradients(model, batch)
    with torch.autocast("cpu", torch.bfloat16):
        _, whole = loss_and_gradients(model, batch)
        chunk_loss(model, model.lm_head, TOKENS)
        _, found = loss_and_gradients(model, batch)
    assert float((found - exact).norm()) < 1.2 * float((whole - exact).norm())


def test_all_logits_never_exist_at_once() -> None:
    model, batch = build("Llama", "causal", vocab_size=4000), make_batch(8, "causal")
    logits = batch["labels"].numel() * 4000 * 4
    with LiveBytes() as whole:
        loss_and_gradients(model, batch)
    chunk_loss(model, model.lm_head, TOKENS)
    with LiveBytes() as chunked:
        loss_and_gradients(model, batch)
    assert whole.peak - chunked.peak > logits


def test_without_labels_the_model_returns_its_logits() -> None:
    model, batch = build("Llama", "causal").eval(), make_batch(2, "causal")
    expected = model(batch["input_ids"], batch["attention_mask"]).logits
    chunk_loss(model, model.lm_head, TOKENS)
    assert torch.equal(model(batch["input_ids"], batch["attention_mask"]).logits, expected)
    assert model.generate(batch["input_ids"][:1, :3], max_new_tokens=2, do_sample=False).shape[1] <= 5


def test_evaluation_computes_no_gradients() -> None:
    model, batch = build("Llama", "causal").eval(), make_batch(2, "causal")
    expected = model(**batch).loss
    chunk_loss(model, model.lm_head, TOKENS)
    with torch.no_grad():
        loss = model(**batch).loss
    assert float(loss) == pytest.approx(float(expected), rel=1e-6)
    assert not loss.requires_grad


def test_a_batch_without_labels_to_predict_has_no_mean() -> None:
    model, batch = build("Llama", "causal"), make_batch(2, "causal")
    chunk_loss(model, model.lm_head, TOKENS)
    loss = model(**{**batch, "labels": torch.full_like(batch["labels"], -100)}).loss
    assert torch.isnan(loss)


class OtherHead(torch.nn.Module):
    """A model that does to its logits what `use` says."""

    def __init__(self, use: Any) -> None:
        super().__init__()
        self.head, self.use = torch.nn.Linear(4, 9), use

    def forward(self, states: torch.Tensor, labels: torch.Tensor) -> Any:
        return torch.nn.functional.cross_entropy(self.use(self, states), labels)


@pytest.mark.parametrize(
    "use",
    [
        lambda model, states: model.head(states).softmax(-1),
        lambda model, states: torch.relu(model.head(states)),
        lambda model, states: model.head(states)[:, :5],
        lambda model, states: model.head(states) * states[:, :1],
        lambda model, states: model.head(states).view(-1, 3),
        lambda model, states: torch.nn.functional.linear(states, model.head.weight),
    ],
    ids=["method", "function", "some words", "a factor of each token", "another shape", "not through the head"],
)
def test_a_head_that_is_not_recognized_is_refused(use: Any) -> None:
    model = OtherHead(use)
    chunk_loss(model, model.head, TOKENS)
    with pytest.raises(RecipeError, match="does not recognize how OtherHead computes its loss"):
        model(states=torch.randn(6, 4), labels=torch.arange(6))
