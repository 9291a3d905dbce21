"""Packed rows have the loss and gradients of rows that are not packed, and do not see each other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from heads import build, gradients, make_batch
from parts import parts_of

from tightfit.engine.micro_batch_loss import model_loss, weighted_micro_batches
from tightfit.engine.step import train_batch
from tightfit.errors import RecipeError
from tightfit.ops.packing import keeps_rows_apart, pack_rows, packed

CAUSAL = ["Llama", "Qwen2", "GPT2"]


def loss_and_gradients(model: Any, batch: dict[str, torch.Tensor], rows: int = 8) -> tuple[float, torch.Tensor]:
    micro_batches = weighted_micro_batches(model, batch, rows)
    loss = train_batch(model, micro_batches, model_loss, torch.Tensor.backward, lambda name: torch.enable_grad())
    return float(loss), gradients(model)


@pytest.mark.parametrize("rows", [8, 3], ids=["whole batch", "micro-batches"])
@pytest.mark.parametrize("architecture", CAUSAL)
def test_loss_and_gradients_are_those_of_rows_that_are_not_packed(architecture: str, rows: int) -> None:
    model, batch = build(architecture, "causal"), make_batch(8, "causal")
    loss, expected = loss_and_gradients(model, batch)
    pack_rows(model)
    found, packed_gradients = loss_and_gradients(model, batch, rows)
    assert found == pytest.approx(loss, rel=1e-6)
    assert float((packed_gradients - expected).norm() / expected.norm()) < 1e-5


@pytest.mark.parametrize("architecture", CAUSAL)
def test_a_row_does_not_see_the_others(architecture: str) -> None:
    model, batch = build(architecture, "causal").eval(), make_batch(4, "causal")
    last = int(batch["attention_mask"][-1].sum())
    joined = packed(batch)
    labels = joined.pop("labels")
    assert labels.shape == joined["input_ids"].shape == (1, int(batch["attention_mask"].sum()))
    before = model(**joined).logits[0, -last:]
    joined["input_ids"][0, :-last] = 7  # all rows but the last
    assert torch.allclose(model(**joined).logits[0, -last:], before, atol=1e-6)


def test_positions_start_again_and_no_row_predicts_the_next() -> None:
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    ids = torch.tensor([[5, 6, 7, 0], [8, 9, 0, 0]])
    found = packed({"input_ids": ids, "attention_mask": mask, "labels": ids})
    assert found["input_ids"].tolist() == [[5, 6, 7, 8, 9]]
    assert found["position_ids"].tolist() == [[0, 1, 2, 0, 1]]
    assert found["labels"].tolist() == [[-100, 6, 7, -100, 9]]


def test_evaluation_and_rows_without_labels_stay_as_they_are() -> None:
    model, batch = build("Llama", "causal"), make_batch(3, "causal")
    pack_rows(model)
    assert model.eval()(**batch).logits.shape[0] == 3
    batch.pop("labels")
    assert model.train()(**batch).logits.shape[0] == 3


def test_a_model_that_does_not_keep_rows_apart_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("Llama", "causal")
    assert keeps_rows_apart(model)
    forward = model.model.forward
    monkeypatch.setattr(model.model, "forward", lambda *args, position_ids=None, **kwargs: forward(*args, **kwargs))
    assert not keeps_rows_apart(model)
    with pytest.raises(RecipeError, match="keep packed rows apart: LlamaForCausalLM does not"):
        parts_of("packing", model=model)


@pytest.mark.parametrize(("architecture", "head"), [("Bert", "sequence"), ("T5", "seq2seq")])
def test_other_models_are_refused(architecture: str, head: str) -> None:
    with pytest.raises(RecipeError, match="is for causal language models"):
        parts_of("packing", model=build(architecture, head))
