"""The step in micro-batches against a plain PyTorch step, for every head."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from heads import build, gradients, make_batch

from tightfit.engine.micro_batch_loss import label_counts, model_loss, weighted_micro_batches
from tightfit.engine.step import train_batch

TOLERANCE = 1e-5
ALL_HEADS = [
    *itertools.product(
        ["Bert", "Roberta", "DistilBert", "DebertaV2", "ModernBert", "Qwen2", "Llama", "GPT2", "T5", "MPNet", "Albert"],
        ["sequence"],
    ),
    *itertools.product(["Bert", "DistilBert", "DebertaV2"], ["token"]),
    *itertools.product(["Bert", "DistilBert", "ModernBert", "GPT2"], ["question"]),
    *itertools.product(["GPT2", "Qwen2", "Llama"], ["causal"]),
    ("T5", "seq2seq"),
]


@contextlib.contextmanager
def no_meter(name: str) -> Iterator[None]:
    yield


def in_micro_batches(model: Any, batch: dict[str, torch.Tensor], rows: int) -> tuple[float, torch.Tensor]:
    loss = train_batch(model, weighted_micro_batches(model, batch, rows), model_loss, torch.Tensor.backward, no_meter)
    return float(loss), gradients(model)


def whole_batch(model: Any, batch: dict[str, torch.Tensor]) -> tuple[float, torch.Tensor]:
    loss = model(**batch).loss
    loss.backward()
    return float(loss.detach()), gradients(model)


@pytest.mark.parametrize(("architecture", "head"), ALL_HEADS)
@pytest.mark.parametrize(("batch_rows", "rows"), [(8, 1), (8, 3), (5, 2), (1, 4)])
def test_micro_batches_equal_the_whole_batch(architecture: str, head: str, batch_rows: int, rows: int) -> None:
    model = build(architecture, head)
    # The loss of an answer depends on the padding (see the next test), so these rows have none.
    batch = make_batch(batch_rows, head, shortest=20 if head == "question" else 3)
    loss, expected = whole_batch(model, batch)
    accumulated_loss, found = in_micro_batches(model, batch, rows)
    assert accumulated_loss == pytest.approx(loss, rel=TOLERANCE)
    assert (found - expected).norm() <= TOLERANCE * expected.norm()


@pytest.mark.parametrize("architecture", ["Bert", "DistilBert", "ModernBert", "GPT2"])
def test_the_loss_of_answers_depends_on_padding_not_on_weights(architecture: str) -> None:
    """Heads take the softmax over all positions, padding too: micro-batches without it have a lower loss."""
    model, batch = build(architecture, "question"), make_batch(8, "question")
    assert (batch["end_positions"] < batch["attention_mask"].sum(dim=1)).all()
    loss, expected = whole_batch(model, batch)
    padded = [(1 / 8, {key: value[row : row + 1] for key, value in batch.items()}) for row in range(8)]
    padded_loss = float(train_batch(model, padded, model_loss, torch.Tensor.backward, no_meter))
    assert padded_loss == pytest.approx(loss, rel=TOLERANCE)
    assert (gradients(model) - expected).norm() <= TOLERANCE * expected.norm()

    trimmed_loss, _ = in_micro_batches(model, batch, 1)
    outputs, padding = model(**batch), batch["attention_mask"] == 0
    masked = [
        torch.nn.functional.cross_entropy(logits.masked_fill(padding, -torch.inf), batch[f"{place}_positions"])
        for place, logits in (("start", outputs.start_logits), ("end", outputs.end_logits))
    ]
    assert trimmed_loss == pytest.approx(float(sum(masked)) / 2, rel=TOLERANCE)
    assert trimmed_loss < loss * 0.9


@pytest.mark.parametrize("rows", [1, 3])
def test_answers_outside_their_rows_have_no_weight(rows: int) -> None:
    model, batch = build("Bert", "question"), make_batch(8, "question", shortest=20)
    batch["start_positions"][:2] = batch["end_positions"][:2] = 20
    loss, expected = whole_batch(model, batch)
    accumulated_loss, found = in_micro_batches(model, batch, rows)
    assert accumulated_loss == pytest.approx(loss, rel=TOLERANCE)
    assert (found - expected).norm() <= TOLERANCE * expected.norm()


def test_a_micro_batch_without_labels_is_skipped() -> None:
    model, batch = build("Bert", "token"), make_batch(6, "token")
    batch["labels"][2:] = -100
    loss, expected = whole_batch(model, batch)
    accumulated_loss, found = in_micro_batches(model, batch, 1)
    assert accumulated_loss == pytest.approx(loss, rel=TOLERANCE)
    assert (found - expected).norm() <= TOLERANCE * expected.norm()


def test_a_batch_without_labels_has_loss_zero() -> None:
    model, batch = build("Bert", "token"), make_batch(3, "token")
    batch["labels"][:] = -100
    loss = train_batch(model, weighted_micro_batches(model, batch, 2), model_loss, torch.Tensor.backward, no_meter)
    assert float(loss) == 0


@pytest.mark.parametrize("labels", [torch.rand(7), torch.rand(7, 3)])
def test_float_labels_are_weighted_by_row(labels: torch.Tensor) -> None:
    model, batch = build("Bert"), make_batch(7)
    model.config.problem_type = "regression" if labels.dim() == 1 else "multi_label_classification"
    if labels.dim() == 1:
        model.num_labels = model.config.num_labels = 1
        model.classifier = torch.nn.Linear(32, 1)
    batch["labels"] = labels
    loss, expected = whole_batch(model, batch)
    accumulated_loss, found = in_micro_batches(model, batch, 2)
    assert accumulated_loss == pytest.approx(loss, rel=TOLERANCE)
    assert (found - expected).norm() <= TOLERANCE * expected.norm()


def test_gradient_accumulation_of_transformers_is_still_wrong(tmp_path: Any) -> None:
    """Why the step has its own accumulation: 4 micro-batches of 4 give 4 times the gradient of one batch of 16."""
    import transformers

    def gradient(rows: int, accumulated: int) -> torch.Tensor:
        model, batch = build("Bert"), make_batch(16)
        seen: list[torch.Tensor] = []
        rows_of_batch = [{key: value[i] for key, value in batch.items()} for i in range(16)]
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=rows,
            gradient_accumulation_steps=accumulated,
            max_steps=1,
            max_grad_norm=0,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            train_sampling_strategy="sequential",
        )

        class RecordGradients(transformers.TrainerCallback):
            def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
                seen.append(torch.cat([p.grad.flatten() for p in model.parameters()]).clone())

        transformers.Trainer(model, arguments, train_dataset=rows_of_batch, callbacks=[RecordGradients()]).train()
        return seen[0]

    assert float(gradient(4, 4).norm() / gradient(16, 1).norm()) == pytest.approx(4.0, rel=1e-3)


def test_labels_are_counted_as_the_loss_counts_them() -> None:
    batch = {"input_ids": torch.ones(2, 3), "labels": torch.tensor([[5, 6, -100], [-100, 7, 8]])}
    assert label_counts(build("Bert", "token"), batch) == [2, 2]
    assert label_counts(build("GPT2", "causal"), batch) == [1, 2]
    assert label_counts(build("T5", "seq2seq"), batch) == [2, 2]
