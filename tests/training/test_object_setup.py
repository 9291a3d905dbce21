"""A model with a modified head and a collator of its own: estimated and trained as objects, without a job."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from heads import build
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

from tightfit.data.batch_spec import BatchSpec
from tightfit.device import find_device
from tightfit.engine.meter import meter_for
from tightfit.strategies.recipe import Recipe
from tightfit.system.memory import tuned_malloc
from tightfit.training.object_setup import ObjectSetup

RUN = "import sys; sys.path[:0] = sys.argv[1:3]; import test_object_setup; test_object_setup.train(*sys.argv[3:])"


class TwoLayerHead(torch.nn.Module):
    def __init__(self, width: int, labels: int) -> None:
        super().__init__()
        self.hidden, self.out = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, labels)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.hidden(features)))


def with_two_layer_head(model: torch.nn.Module) -> torch.nn.Module:
    model.classifier = TwoLayerHead(model.config.hidden_size, model.config.num_labels)
    return model


def collate(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Pads to a multiple of 8 and weighs each row, which the model does not read."""
    width = -(-max(len(row["input_ids"]) for row in rows) // 8) * 8
    ids = torch.tensor([row["input_ids"] + [0] * (width - len(row["input_ids"])) for row in rows])
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": torch.tensor([r["labels"] for r in rows])}


def rows_of(count: int, longest: int = 24) -> list[dict[str, list[int]]]:
    return [{"input_ids": [1 + (row * 7) % 5] * (4 + row % (longest - 3)), "labels": row % 3} for row in range(count)]


def setup_of(folder: Path, *specs: str, **kwargs: object) -> ObjectSetup:
    args = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=8, max_steps=2, use_cpu=True, report_to="none",
        disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    return ObjectSetup(
        model=with_two_layer_head(build("Bert")),
        args=args,
        train_dataset=rows_of(40),
        eval_dataset=rows_of(10),
        data_collator=collate,
        recipe=Recipe.parse(specs),
        device=find_device("cpu"),
        **kwargs,
    )


def test_the_fields_of_a_batch_are_learned_from_the_collator(tmp_path: Path) -> None:
    setup = setup_of(tmp_path)
    batch = setup.batch_spec.make(5, 16)
    assert {name: tuple(value.shape) for name, value in batch.items()} == {
        "input_ids": (5, 16), "labels": (5,), "attention_mask": (5, 16),
    }  # fmt: skip
    made = {"input_ids": torch.ones(2, 9).long(), "labels": torch.ones(2, 4), "pixels": torch.ones(2, 3, 7)}
    other = {"input_ids": torch.ones(3, 6).long(), "labels": torch.ones(3, 5), "pixels": torch.ones(3, 3, 7)}
    batch = BatchSpec.of(made, other).make(4, 11)
    assert batch["labels"].shape == (4, 5)  # targets are an axis of their own, of the longest length that was seen
    assert batch["pixels"].shape == (4, 3, 7)


def test_a_given_model_is_not_changed_by_its_estimate(tmp_path: Path) -> None:
    setup = setup_of(tmp_path, "gradient-checkpointing", "micro-batch:size=2")
    before = {name: weight.clone() for name, weight in setup.model.state_dict().items()}
    estimate = setup.estimate()
    assert estimate.parameters == sum(p.numel() for p in setup.model.parameters())
    assert all(torch.equal(before[name], weight) for name, weight in setup.model.state_dict().items())
    assert not setup.model.is_gradient_checkpointing


def test_a_given_model_trains_with_its_collator_and_loss(tmp_path: Path) -> None:
    def loss(outputs: object, labels: torch.Tensor, num_items_in_batch: object = None) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(outputs.logits, labels)  # type: ignore[attr-defined]

    setup = setup_of(tmp_path, "micro-batch:size=3", compute_loss_func=loss)
    head = setup.model.classifier.out.weight.clone()
    assert setup.estimate().peak > 0
    trainer = setup.trainer(meter_for(setup.device))
    trainer.train()
    assert trainer.state.global_step == 2
    assert not torch.equal(head, setup.model.classifier.out.weight)


def train(folder: str, recipe: str) -> None:
    """Train a model with a modified head and print its predicted and its measured peak."""
    config = BertConfig(vocab_size=8000, hidden_size=512, num_hidden_layers=6, num_attention_heads=8, num_labels=3)
    args = TrainingArguments(
        output_dir=folder, per_device_train_batch_size=16, max_steps=3, use_cpu=True, report_to="none",
        disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    torch.manual_seed(0)
    setup = ObjectSetup(
        model=with_two_layer_head(BertForSequenceClassification(config)),
        args=args,
        train_dataset=rows_of(100, longest=96),
        eval_dataset=rows_of(16, longest=96),
        data_collator=collate,
        recipe=Recipe.parse(recipe.split()),
        device=find_device("cpu"),
    )
    with tuned_malloc():
        meter = meter_for(setup.device)
        with meter.excluded():
            predicted = setup.estimate().peak
        setup.trainer(meter).train()
    print(json.dumps({"predicted": predicted, "measured": meter.peak}))  # noqa: T201


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["", "micro-batch:size=4 gradient-checkpointing"])
def test_the_estimate_of_a_given_model_is_within_two_percent(tmp_path: Path, recipe: str) -> None:
    """In a process of its own, whose peak nothing else has raised."""
    here = Path(__file__).parent
    command = [sys.executable, "-c", RUN, str(here), str(here.parent), str(tmp_path), recipe]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
    assert found["predicted"] == pytest.approx(found["measured"], rel=0.02)
