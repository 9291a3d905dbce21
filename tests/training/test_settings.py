"""Settings of a trainer: the same learning rates and losses as transformers.Trainer; exact over micro-batches."""

from __future__ import annotations

import json
import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from conftest import write_reviews
from heads import build, make_batch
from parts import parts_of
from trainers import Rows, rows_of

from tightfit import Job, Run, evaluate, load_run, train
from tightfit.engine.arguments import FREE, OPTION_OF, STRATEGY_OF, check_job, given_arguments, optimizer_settings
from tightfit.engine.class_loss import ClassLoss
from tightfit.engine.meter import meter_for
from tightfit.engine.micro_batch_loss import weighted_micro_batches
from tightfit.engine.step import train_batch
from tightfit.errors import BadInput
from tightfit.messages import Message
from tightfit.strategies import STRATEGIES
from tightfit.training.setup import training_arguments
from tightfit.training.trainer import Trainer

STEPS = 6


def job_of(**settings: Any) -> Job:
    return Job(model="m", data="d", max_steps=STEPS, **settings)


def history_of(trainer: Any, key: str) -> list[float]:
    trainer.train()
    return [entry[key] for entry in trainer.state.log_history if key in entry]


def ours(folder: Path, job: Job, *specs: str, loss: ClassLoss | None = None) -> Trainer:
    """Our trainer of a job, with every step logged."""
    torch.manual_seed(0)
    settings = optimizer_settings(job)
    parts = replace(parts_of(*specs), learning_rate=job.learning_rate, optimizer_settings=settings)
    args = training_arguments(job, parts, folder, [])
    args.logging_steps, args.eval_strategy, args.save_strategy = 1, "no", "no"
    args.load_best_model_at_end, args.metric_for_best_model = False, None
    return Trainer(parts=parts, meter=meter_for(parts.device), loss=loss, args=args, train_dataset=training_rows())


def training_rows() -> Rows:
    return Rows(row for seed in (1, 2) for row in rows_of(make_batch(8, longest=24, seed=seed)))


def theirs(folder: Path, cls: type = transformers.Trainer, **settings: Any) -> Any:
    """transformers.Trainer with the same model and rows."""
    args = transformers.TrainingArguments(
        str(folder), per_device_train_batch_size=8, max_steps=STEPS, learning_rate=2e-5, weight_decay=0.01,
        logging_steps=1, use_cpu=True, report_to="none", disable_tqdm=True, save_strategy="no", **settings,
    )  # fmt: skip
    torch.manual_seed(0)
    return cls(model=build("Bert"), args=args, train_dataset=training_rows())


SCHEDULES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "warm-up by share": ({"warmup_ratio": 0.5}, {"warmup_steps": 0.5}),
    "warm-up by steps": ({"warmup_steps": 2}, {"warmup_steps": 2}),
    "cosine": ({"lr_scheduler_type": "cosine", "warmup_steps": 1}, {"lr_scheduler_type": "cosine", "warmup_steps": 1}),
    "with settings": (
        {"lr_scheduler_type": "cosine_with_min_lr", "set": {"lr_scheduler_kwargs": {"min_lr": 1e-6}}},
        {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 1e-6}},
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_learning_rates_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    given, expected = SCHEDULES[name]
    rates = history_of(ours(tmp_path / "ours", job_of(**given)), "learning_rate")
    assert rates == history_of(theirs(tmp_path / "theirs", **expected), "learning_rate")
    assert len(rates) == STEPS


def test_smoothed_losses_are_those_of_transformers(tmp_path: Path) -> None:
    job = job_of(label_smoothing_factor=0.1)
    losses = history_of(ours(tmp_path / "ours", job, "micro-batch:size=2", loss=ClassLoss.of(job, None)), "loss")
    expected = history_of(theirs(tmp_path / "theirs", label_smoothing_factor=0.1), "loss")
    assert losses == pytest.approx(expected, rel=1e-5)


class WeightedTrainer(transformers.Trainer):
    """The usual subclass for class weights."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        outputs = model(**{name: value for name, value in inputs.items() if name != "labels"})
        weights = torch.tensor([5.0, 1.0, 0.5])
        loss = torch.nn.functional.cross_entropy(outputs.logits, inputs["labels"], weight=weights)
        return (loss, outputs) if return_outputs else loss


def test_weighted_losses_are_those_of_a_trainer_with_weighted_cross_entropy(tmp_path: Path) -> None:
    loss = ClassLoss(weights=(5.0, 1.0, 0.5))
    losses = history_of(ours(tmp_path / "ours", job_of(), "micro-batch:size=2", loss=loss), "loss")
    assert losses == pytest.approx(history_of(theirs(tmp_path / "theirs", WeightedTrainer), "loss"), rel=1e-5)


def test_adam_takes_its_settings_from_set(tmp_path: Path) -> None:
    settings = {"adam_beta1": 0.5, "adam_beta2": 0.9, "adam_epsilon": 1e-3}
    expected = history_of(theirs(tmp_path / "theirs", **settings), "loss")
    assert history_of(ours(tmp_path / "ours", job_of(set=settings)), "loss") == pytest.approx(expected, rel=1e-5)
    assert expected != pytest.approx(history_of(theirs(tmp_path / "defaults"), "loss"), rel=1e-5)


HEADS = {"sequence": "Bert", "token": "Bert", "causal": "GPT2", "seq2seq": "T5"}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("loss", [ClassLoss(0.2), ClassLoss(0.1, (3.0, 0.5, 1.0)), ClassLoss(0.0, (9.0, 1.0, 1.0))])
def test_micro_batches_give_the_gradient_of_the_whole_batch(head: str, loss: ClassLoss) -> None:
    model, batch = build(HEADS[head], head), make_batch(8, head)
    if loss.weights and head not in ("sequence", "token"):
        loss = ClassLoss(loss.smoothing, tuple(1.0 + (n % 3) for n in range(model.config.vocab_size)))
    found = []
    for rows in (8, 3):
        model.zero_grad()
        weighted = weighted_micro_batches(model, batch, rows, class_weights=loss.weights)
        value = train_batch(model, weighted, loss, torch.Tensor.backward, lambda _: _Nothing())
        gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        found.append((float(value), gradient.clone()))
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-5)
    assert (found[1][1] - found[0][1]).norm() <= 1e-5 * found[0][1].norm()


class _Nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *error: Any) -> None: ...


@pytest.mark.parametrize("head", HEADS)
def test_the_smoothed_loss_is_that_of_transformers_for_every_head(head: str) -> None:
    from transformers.trainer_pt_utils import LabelSmoother

    model, batch = build(HEADS[head], head).eval(), make_batch(8, head)
    with torch.no_grad():
        found, outputs = ClassLoss(0.1).with_outputs(model, batch)
        plain = ClassLoss(0.0)(model, batch)
    expected = LabelSmoother(0.1)({"logits": outputs.logits}, batch["labels"], shift_labels=head == "causal")
    assert float(found) == pytest.approx(float(expected), rel=1e-5)
    assert float(plain) == pytest.approx(float(model(**batch).loss.detach()), rel=1e-5)


def run_of(tiny_model: Path, data: Path, out: Path, *, resume: bool = False, **settings: Any) -> Run:
    values: dict[str, Any] = {"batch_size": 8, "max_length": 32, "learning_rate": 5e-3, "seed": 7, **settings}
    return train(
        Job(model=str(tiny_model), data=str(data), **values),
        ["micro-batch:size=4"], out=out, device="cpu", quiet=True, preflight=False, resume=resume,
    )  # fmt: skip


def steps_of(run: Run, key: str = "eval_loss") -> list[Any]:
    return [entry["step"] for entry in run.history if key in entry]


@pytest.fixture(scope="module")
def weighted(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("settings")
    settings = {"class_weights": "1=3", "label_smoothing_factor": 0.1, "eval_steps": 2, "save_steps": 3}
    return run_of(tiny_model, write_reviews(folder / "reviews.csv"), folder / "run", **settings, warmup_ratio=0.2)


def test_a_run_evaluates_and_saves_at_its_steps(weighted: Run) -> None:
    assert steps_of(weighted) == [2, 4, 6, 7]  # and at the end
    assert weighted.data.class_weights == (1.0, 3.0)
    assert weighted.job.class_weights == "1=3"
    kept = {int(path.name.partition("-")[2]) for path in Path(weighted.folder).glob("checkpoint-*")}
    assert weighted.steps in kept


def test_the_evaluation_of_a_run_uses_its_loss(weighted: Run) -> None:
    found = evaluate(weighted.folder, device="cpu").metrics["eval_loss"]
    assert found == pytest.approx(weighted.metrics["eval_loss"], rel=1e-4)


def test_balanced_weights_are_those_of_scikit_learn() -> None:
    from sklearn.utils.class_weight import compute_class_weight

    from tightfit.data.labels import Labels
    from tightfit.tasks.classes import class_weights

    expected = compute_class_weight("balanced", classes=np.arange(3), y=[0] * 5 + [1] * 3 + [2] * 2)
    assert class_weights("balanced", Labels(("a", "b", "c")), [5, 3, 2]) == pytest.approx(tuple(expected))


def test_a_run_stops_early_and_stays_stopped(tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    settings = {"eval_steps": 1, "early_stopping_patience": 2, "epochs": 4, "learning_rate": 1e-9, "metric": "f1"}
    run = run_of(tiny_model, reviews, tmp_path / "run", **settings)
    assert run.steps == 3, "one evaluation, and two that are not better"
    assert any("stopped early after step 3 of 28" in str(note) for note in run.notes)
    (tmp_path / "run" / "run.json").unlink()
    again = run_of(tiny_model, reviews, tmp_path / "run", **settings, resume=True)
    assert again.steps == 3
    shutil.rmtree(tmp_path / "run" / "checkpoint-3")
    (tmp_path / "run" / "run.json").unlink()
    (tmp_path / "run" / "model.safetensors").unlink()
    assert run_of(tiny_model, reviews, tmp_path / "run", **settings, resume=True).steps == 3, "counts go on"


def test_settings_cannot_change_when_a_run_is_resumed(weighted: Run) -> None:
    job = weighted.job.model_copy(update={"label_smoothing_factor": 0.2})
    with pytest.raises(BadInput, match=r"label-smoothing-factor is 0\.2 and was 0\.1"):
        train(job, ["micro-batch:size=4"], out=weighted.folder, device="cpu", quiet=True, resume=True)


def test_the_record_and_the_job_file_have_the_settings(weighted: Run) -> None:
    job = load_run(weighted.folder).job
    assert (job.warmup_ratio, job.save_steps, job.label_smoothing_factor) == (0.2, 3, 0.1)
    assert "class-weights: 1=3" in (Path(weighted.folder) / "job.yaml").read_text()
    assert json.loads((Path(weighted.folder) / "run.json").read_text())["data"]["class_weights"] == [1.0, 3.0]


def test_every_field_of_training_arguments_has_one_home() -> None:
    names = {field.name for field in fields(transformers.TrainingArguments)}
    groups = [set(STRATEGY_OF), set(OPTION_OF), FREE]
    assert set.union(*groups) <= names, "renamed or removed in transformers"
    assert sum(map(len, groups)) == len(set.union(*groups))
    assert all(spec.partition(":")[0] in STRATEGIES for spec in STRATEGY_OF.values())


def test_values_have_the_type_of_their_field() -> None:
    found = given_arguments(["adam-epsilon=1e-6", "logging_first_step=false", 'lr_scheduler_kwargs={"min_lr": 0.1}'])
    assert found == {"adam_epsilon": 1e-6, "logging_first_step": False, "lr_scheduler_kwargs": {"min_lr": 0.1}}


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "memory": ({"set": ["gradient_accumulation_steps=4"]}, "decides about memory.* Use --use micro-batch:size=8 or"),
    "option": ({"set": ["num_train_epochs=3"]}, "has an option of its own, --epochs"),
    "own": ({"set": ["remove_unused_columns=false"]}, "tightfit decides it itself"),
    "unknown": ({"set": ["adam_beta3=3"]}, "no such field; did you mean 'adam_beta[12]'"),
    "value": ({"set": ["adam_beta2=much"]}, "--set adam_beta2=much is not valid"),
    "no value": ({"set": ["adam_beta2"]}, "write --set adam_beta2=VALUE"),
    "schedule": ({"lr_scheduler_type": "cosin"}, "no --lr-scheduler-type cosin: did you mean 'cosine'"),
    "schedule's settings": ({"lr_scheduler_type": "cosine_with_min_lr"}, "cosine_with_min_lr cannot be used: .*min_lr"),
    "two warm-ups": ({"warmup_steps": 3, "warmup_ratio": 0.1}, "both say how long the warm-up is"),
    "weights": ({"class_weights": "spam=much"}, r"cannot be read at 'spam=much'"),
    "no classes": ({"task": "text-regression", "label_smoothing_factor": 0.1}, "has no --label-smoothing-factor"),
    "no weights": ({"task": "text-regression", "class_weights": "balanced"}, "has no --class-weights"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_setting_that_cannot_be_used_is_one_sentence(name: str) -> None:
    settings, expected = BAD[name]
    with pytest.raises(BadInput, match=expected) as error:
        check_job(Job(model="m", data="d", **settings))
    assert isinstance(error.value.message, Message)


def test_an_unknown_class_is_named(tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--class-weights names 'spam', which is no label"):
        run_of(tiny_model, reviews, tmp_path / "run", class_weights="spam=5")


def test_a_tracker_that_is_not_installed_is_one_sentence(tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--report-to wandb needs the package wandb: pip install wandb"):
        train(Job(model=str(tiny_model), data=str(reviews)), out=tmp_path / "run", report_to=["wandb"], device="cpu")
