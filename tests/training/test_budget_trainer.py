"""transformers.Trainer with a memory budget: the same training without one, and a planned recipe with one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from heads import build, make_batch
from plans import RATES
from torch.utils.data import Dataset, IterableDataset
from transformers import TrainerCallback, TrainingArguments

import tightfit
from tightfit.errors import BadInput, DoesNotFit, OutOfMemory
from tightfit.strategies.parts import AfterBackward
from tightfit.timing import StepTime

ROWS = 24


@pytest.fixture(autouse=True)
def _made_up_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tightfit.training.object_setup.step_time_on", lambda device: StepTime(RATES))


class Rows(Dataset[Any]):
    """Rows of very different lengths, without padding; ragged labels for heads that have one per token."""

    def __init__(self, head: str = "sequence", rows: int = ROWS) -> None:
        batch = make_batch(rows, head)
        widths = batch["attention_mask"].sum(dim=1).tolist()
        self.rows = [
            {name: value[row, :width] if value.dim() == 2 else value[row] for name, value in batch.items()}
            for row, width in enumerate(widths)
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return self.rows[row]


def collate(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    fill = {"labels": -100}
    return {
        name: torch.nn.utils.rnn.pad_sequence([row[name] for row in rows], True, fill.get(name, 0))
        if rows[0][name].dim()
        else torch.stack([row[name] for row in rows])
        for name in rows[0]
    }


def arguments(folder: Path, **settings: Any) -> TrainingArguments:
    defaults = {
        "per_device_train_batch_size": 4, "max_steps": 3, "learning_rate": 1e-2, "logging_steps": 1,
        "save_strategy": "no", "report_to": "none", "disable_tqdm": True, "use_cpu": True,
    }  # fmt: skip
    return TrainingArguments(output_dir=str(folder), **{**defaults, **settings})


def trained(cls: Any, folder: Path, model: Any, head: str = "sequence", settings: Any = None, **kwargs: Any) -> Any:
    trainer = cls(
        model=model,
        args=arguments(folder, **(settings or {})),
        train_dataset=Rows(head),
        eval_dataset=Rows(head, 6),
        data_collator=collate,
        **kwargs,
    )
    trainer.train()
    return trainer


def losses(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def assert_same_weights(one: Any, other: Any, tolerance: float | None = None) -> None:
    for (name, weight), (_, expected) in zip(one.model.named_parameters(), other.model.named_parameters(), strict=True):
        equal = torch.equal(weight, expected) if tolerance is None else torch.allclose(weight, expected, atol=tolerance)
        assert equal, name


# Without a budget


@pytest.mark.parametrize(
    ("architecture", "head", "settings"),
    [
        ("Bert", "sequence", {}),
        ("Bert", "token", {"max_grad_norm": 0.0}),
        ("Llama", "causal", {"gradient_accumulation_steps": 3}),
        ("GPT2", "causal", {"gradient_accumulation_steps": 2, "num_train_epochs": 1, "max_steps": -1}),
        ("T5", "seq2seq", {}),
        ("Bert", "sequence", {"gradient_checkpointing": True, "optim": "adafactor"}),
        ("Bert", "sequence", {"train_sampling_strategy": "group_by_length", "eval_strategy": "steps"}),
    ],
)
def test_without_a_budget_losses_and_weights_are_those_of_transformers_to_the_bit(
    tmp_path: Path, architecture: str, head: str, settings: dict[str, Any]
) -> None:
    dropout = {"hidden_dropout_prob": 0.1} if architecture == "Bert" else {}
    one, other = (
        trained(cls, tmp_path, build(architecture, head, **dropout), head, settings)
        for cls in (tightfit.Trainer, transformers.Trainer)
    )
    timed = {"eval_runtime", "eval_samples_per_second", "eval_steps_per_second", "train_runtime"}
    timed |= {"train_samples_per_second", "train_steps_per_second"}
    logs = [[{k: v for k, v in e.items() if k not in timed} for e in t.state.log_history] for t in (one, other)]
    assert logs[0] == logs[1]
    assert_same_weights(one, other)


@pytest.mark.parametrize(("architecture", "head"), [("Bert", "sequence"), ("Bert", "token"), ("T5", "seq2seq")])
def test_accumulated_gradients_are_those_of_the_whole_batch(tmp_path: Path, architecture: str, head: str) -> None:
    """Also where transformers' are not: these heads ignore the number of labels that it passes to them."""
    settings = {"optim": "sgd"}
    accumulated = {**settings, "gradient_accumulation_steps": 4}
    whole = trained(
        transformers.Trainer, tmp_path, build(architecture, head), head, {**settings, "per_device_train_batch_size": 16}
    )
    ours = trained(tightfit.Trainer, tmp_path, build(architecture, head), head, accumulated)
    assert losses(ours) == pytest.approx(losses(whole), rel=1e-4)
    assert_same_weights(ours, whole, 1e-5)
    theirs = trained(transformers.Trainer, tmp_path, build(architecture, head), head, accumulated)
    assert losses(theirs)[0] == pytest.approx(4 * losses(whole)[0], rel=0.3)


def failing_above(rows: int, model: Any) -> Any:
    """A model that runs out of memory in the backward pass of more rows, after some gradients were added."""

    def limit(model: Any, args: Any, kwargs: dict[str, torch.Tensor], outputs: Any) -> None:
        if model.training and len(kwargs["input_ids"]) > rows:
            outputs.loss = outputs.loss + _Fails.apply(next(model.parameters())).sum()

    model.register_forward_hook(limit, with_kwargs=True)
    return model


class _Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor) -> torch.Tensor:
        return weight * 0

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


@pytest.mark.parametrize("accumulated", [1, 3])
def test_a_step_that_runs_out_of_memory_is_repeated_with_fewer_rows(tmp_path: Path, accumulated: int) -> None:
    settings = {"optim": "sgd", "gradient_accumulation_steps": accumulated}
    limited = failing_above(2, build("Bert", "token"))
    ours = trained(tightfit.Trainer, tmp_path, limited, "token", settings)
    expected = trained(tightfit.Trainer, tmp_path, build("Bert", "token"), "token", settings)
    assert losses(ours) == pytest.approx(losses(expected), rel=1e-4)
    assert_same_weights(ours, expected, 1e-5)
    assert any("continuing with 2" in event for event in ours.report().events)
    assert "continuing with 2" in str(ours.report())


def test_memory_that_suffices_for_no_row_ends_the_training_with_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(OutOfMemory, match="not enough memory to train on a single text"):
        trained(tightfit.Trainer, tmp_path, failing_above(0, build("Bert")))


# With a budget


def test_the_plan_trains_the_whole_batch_of_a_step(tmp_path: Path) -> None:
    settings = {"gradient_accumulation_steps": 4, "gradient_checkpointing": True, "optim": "sgd"}
    given = arguments(tmp_path, **settings)
    ours = tightfit.Trainer(
        build("Bert", "token"), given, collate, Rows("token"), Rows("token", 6), budget="4GB", use="micro-batch:size=3"
    )
    assert ours.plan.fits
    assert {"micro-batch:size=3", "gradient-checkpointing"} <= set(ours.plan.recipe.specs)
    ours.train()
    assert (given.per_device_train_batch_size, given.gradient_accumulation_steps) == (4, 4)
    whole = {"per_device_train_batch_size": 16, "optim": "sgd"}
    expected = trained(transformers.Trainer, tmp_path, build("Bert", "token"), "token", whole)
    assert losses(ours) == pytest.approx(losses(expected), rel=1e-4)
    assert_same_weights(ours, expected, 1e-5)
    assert ours.evaluate()["eval_loss"] == pytest.approx(expected.evaluate()["eval_loss"], rel=1e-4)
    events = "\n".join(ours.events)
    assert "stays 4 x 4 = 16" in events
    assert "optim=sgd stays" in events
    assert "gradient-checkpointing stays" in events
    found = ours.report().to_json()
    assert {"forward", "backward", "step", "evaluate"} <= found["measured"].keys() & found["predicted"].keys()
    assert found["predicted_peak_bytes"] == ours.plan.chosen.peak


def test_what_the_user_gave_is_used_with_a_budget(tmp_path: Path) -> None:
    """A model function, a loss, callbacks and the optimizer's settings."""
    calls = []

    class Callback(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            calls.append("step")

    def loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        calls.append("loss")
        return torch.nn.functional.cross_entropy(outputs.logits, labels, reduction="sum") / num_items_in_batch

    settings = {"adam_beta1": 0.5, "gradient_accumulation_steps": 2}
    common = {"compute_loss_func": loss, "callbacks": [Callback()]}
    ours = trained(
        tightfit.Trainer, tmp_path, None, settings=settings, budget="4GB", use="micro-batch:size=2",
        model_init=lambda: build("Bert"), **common,
    )  # fmt: skip
    assert ours.inner_optimizer.param_groups[0]["betas"][0] == 0.5
    assert calls.count("step") == 3
    whole = {"adam_beta1": 0.5, "per_device_train_batch_size": 8}
    expected = trained(transformers.Trainer, tmp_path, None, settings=whole, model_init=lambda: build("Bert"))
    assert losses(ours) == pytest.approx(losses(expected), rel=1e-4)


def test_an_optimizer_that_is_given_is_the_one_that_steps(tmp_path: Path) -> None:
    model = build("Bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    ours = trained(tightfit.Trainer, tmp_path, model, budget="4GB", optimizers=(optimizer, None))
    assert ours.inner_optimizer is optimizer
    assert isinstance(ours.parts.stepping, AfterBackward) or optimizer.state


class Regression(torch.nn.Module):
    """Not from transformers, and without tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, features: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        output = self.layer(features)[:, 0]
        return {"loss": torch.nn.functional.mse_loss(output, labels), "output": output}


def test_a_module_of_ones_own_has_a_plan(tmp_path: Path) -> None:
    torch.manual_seed(0)
    rows = [{"features": torch.randn(8), "labels": torch.randn(())} for _ in range(ROWS)]
    args = arguments(tmp_path, gradient_accumulation_steps=2)
    ours = tightfit.Trainer(Regression(), args, train_dataset=rows, budget="4GB", use="micro-batch:size=3")
    ours.train()
    assert ours.state.global_step == 3
    assert ours.plan.chosen.estimate.parameters == 9


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(Rows().rows)


def test_data_that_can_only_be_iterated_needs_its_longest_row(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="give max_length"):
        tightfit.Trainer(build("Bert"), arguments(tmp_path), collate, Stream(), budget="4GB")
    ours = tightfit.Trainer(build("Bert"), arguments(tmp_path), collate, Stream(), budget="4GB", max_length=20)
    ours.train()
    assert ours.state.global_step == 3


def test_a_model_is_simulated_as_it_is(tmp_path: Path) -> None:
    """With frozen layers, resized embeddings and an adapter; nothing in it changes."""
    from peft import LoraConfig, get_peft_model

    model = build("Bert")
    model.resize_token_embeddings(150)
    adapted = get_peft_model(model, LoraConfig(task_type="SEQ_CLS", target_modules=["query"], r=2))
    ours = tightfit.Trainer(adapted, arguments(tmp_path), collate, Rows(), budget="4GB")
    estimate = ours.plan.chosen.estimate
    assert estimate.parameters == sum(p.numel() for p in adapted.parameters())
    assert estimate.trainable_parameters == sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    ours.train()


def test_what_cannot_be_planned_is_said_at_once(tmp_path: Path) -> None:
    model, args = build("Bert"), arguments(tmp_path)
    with pytest.raises(BadInput, match="'freeze' changes what is trained"):
        tightfit.Trainer(model, args, collate, Rows(), budget="4GB", use="freeze")
    with pytest.raises(BadInput, match="needs train_dataset"):
        tightfit.Trainer(model, args, collate, budget="4GB")
    with pytest.raises(DoesNotFit, match="100 MiB"):
        tightfit.Trainer(model, args, collate, Rows(), budget="100MB")
    with pytest.raises(BadInput, match="is not a mapping to tensors"):
        tightfit.Trainer(model, args, lambda rows: [collate(rows)], Rows(), budget="4GB")
