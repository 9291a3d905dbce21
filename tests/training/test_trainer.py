"""Trainer: the step with every kind of loss, the optimizer and the evaluation, against transformers.Trainer."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from heads import build, make_batch
from parts import LENGTH, ROWS
from torch.nn.functional import cross_entropy
from trainers import make_trainer, rows_of, weights_of

from tightfit.errors import BadInput, LossNotFinite
from tightfit.training.trainer import Trainer

HEADS = ("sequence", "token")  # rows of one label, and of different numbers of labels
Gradients = tuple[float, list[torch.Tensor]]


def step_of(trainer: Any, batch: dict[str, torch.Tensor]) -> Gradients:
    """The loss and the gradients of one step; transformers.Trainer takes the whole batch at once."""
    trainer.create_optimizer()
    trainer.current_gradient_accumulation_steps = 1
    count = trainer._get_num_items_in_batch([batch], torch.device("cpu"))
    loss = trainer.training_step(trainer.model, dict(batch), count)
    return float(loss), [parameter.grad for parameter in trainer.model.parameters() if parameter.grad is not None]


def assert_same_step(ours: Trainer, theirs: transformers.Trainer, head: str = "sequence") -> None:
    batch = make_batch(ROWS, head, longest=LENGTH, seed=5)
    (loss, gradients), (expected, expected_gradients) = step_of(ours, batch), step_of(theirs, batch)
    assert loss == pytest.approx(expected, rel=1e-5)
    for found, whole in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-6)


def whole_batch(trainer: Trainer, cls: type[transformers.Trainer] = transformers.Trainer, **kwargs: Any) -> Any:
    """The same training by transformers alone."""
    datasets = {"train_dataset": trainer.train_dataset, "eval_dataset": trainer.eval_dataset}
    return cls(model=copy.deepcopy(trainer.model), args=trainer.args, **datasets, **kwargs)


def mean_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    """Ignores the number of items, as many do."""
    return 2 * cross_entropy(outputs.logits.flatten(0, -2), labels.flatten())


def divided_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    """As transformers documents it."""
    return cross_entropy(outputs.logits.flatten(0, -2), labels.flatten(), reduction="sum") / num_items_in_batch


class OwnLoss:
    """A compute_loss of its own, to be mixed into a trainer."""

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = divided_loss(outputs, labels, num_items_in_batch)
        return (loss, outputs) if return_outputs else loss


class ExtendedLoss:
    """A compute_loss that calls transformers'."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)  # type: ignore[misc]
        loss = 3 * loss
        return (loss, outputs) if return_outputs else loss


class ScaledLoss:
    """Divides by the batch size of the arguments, and says so."""

    loss_is_scaled_for_ga = True

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        loss = cross_entropy(model(**inputs).logits, inputs["labels"], reduction="sum")
        return loss / self.args.train_batch_size  # type: ignore[attr-defined]


@pytest.mark.parametrize("rows", [8, 3, 1])
@pytest.mark.parametrize("head", HEADS)
def test_micro_batches_have_the_gradient_of_the_whole_batch(tmp_path: Path, head: str, rows: int) -> None:
    trainer = make_trainer(tmp_path, f"micro-batch:size={rows}", model=build("Bert", head), head=head)
    assert_same_step(trainer, whole_batch(trainer), head)


@pytest.mark.parametrize("loss", [mean_loss, divided_loss])
@pytest.mark.parametrize("head", HEADS)
def test_compute_loss_func_has_the_gradient_of_the_whole_batch(tmp_path: Path, head: str, loss: Any) -> None:
    """Whether it divides by `num_items_in_batch` or takes the mean itself."""
    model = build("Bert", head)
    trainer = make_trainer(tmp_path, "micro-batch:size=3", model=model, head=head, compute_loss_func=loss)
    assert_same_step(trainer, whole_batch(trainer, compute_loss_func=loss), head)


@pytest.mark.parametrize("mixin", [OwnLoss, ExtendedLoss, ScaledLoss])
@pytest.mark.parametrize("rows", [8, 3])
def test_an_overridden_compute_loss_has_the_gradient_of_the_whole_batch(tmp_path: Path, mixin: Any, rows: int) -> None:
    ours, theirs = (type("Mixed", (mixin, base), {}) for base in (Trainer, transformers.Trainer))
    trainer = make_trainer(tmp_path, f"micro-batch:size={rows}", cls=ours)
    assert_same_step(trainer, whole_batch(trainer, theirs))


@pytest.mark.parametrize("head", HEADS)
def test_label_smoothing_has_the_gradient_of_the_whole_batch(tmp_path: Path, head: str) -> None:
    settings = {"label_smoothing_factor": 0.2}
    trainer = make_trainer(tmp_path, "micro-batch:size=3", model=build("Bert", head), head=head, settings=settings)
    assert_same_step(trainer, whole_batch(trainer), head)
    unsmoothed = make_trainer(tmp_path, "micro-batch:size=3", model=build("Bert", head), head=head)
    step_of(unsmoothed, make_batch(ROWS, head, longest=LENGTH, seed=5))
    assert trainer.model.classifier.weight.grad.norm() < 0.9 * unsmoothed.model.classifier.weight.grad.norm()


def test_the_loss_of_every_micro_batch_is_computed_in_the_given_context(tmp_path: Path) -> None:
    class Counting(Trainer):
        entered = 0

        @contextlib.contextmanager
        def compute_loss_context_manager(self) -> Iterator[None]:
            self.entered += 1
            with torch.autocast("cpu", torch.bfloat16):
                yield

    trainer = make_trainer(tmp_path, "micro-batch:size=3", cls=Counting)
    dtypes: list[torch.dtype] = []
    trainer.model.classifier.register_forward_hook(lambda module, args, output: dtypes.append(output.dtype))
    step_of(trainer, make_batch(ROWS, longest=LENGTH, seed=5))
    assert trainer.entered == 3
    assert dtypes == [torch.bfloat16] * 3


def test_gradient_accumulation_is_refused_for_micro_batches(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"gradient_accumulation_steps cannot be used.*micro-batch"):
        make_trainer(tmp_path, settings={"gradient_accumulation_steps": 2})


def sgd_of(model: torch.nn.Module, cls: type[torch.optim.SGD] = torch.optim.SGD) -> tuple[Any, Any]:
    optimizer = cls(model.parameters(), lr=0.5)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)


def test_a_given_optimizer_and_scheduler_are_used(tmp_path: Path) -> None:
    """The result is that of transformers alone."""
    model = build("Bert")
    optimizer, scheduler = sgd_of(model)
    ours = make_trainer(tmp_path / "a", "micro-batch:size=3", model=model, optimizers=(optimizer, scheduler))
    theirs = whole_batch(ours)
    theirs.args = copy.copy(ours.args)
    theirs.args.output_dir, theirs.args.metric_for_best_model = str(tmp_path / "b"), "loss"
    theirs.optimizer, theirs.lr_scheduler = sgd_of(theirs.model)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*lr_scheduler.*")
        ours.train()
    theirs.train()
    assert ours.inner_optimizer is optimizer
    assert scheduler.get_last_lr() == [pytest.approx(0.005)]
    expected = weights_of(theirs)
    for name, weight in weights_of(ours).items():
        torch.testing.assert_close(weight, expected[name], rtol=1e-4, atol=1e-5)


def test_a_given_optimizer_recovers_from_out_of_memory(tmp_path: Path) -> None:
    class FailingOnce(torch.optim.SGD):
        failed = False

        def step(self, closure: Any = None) -> Any:
            if not self.failed:
                self.failed = True
                raise MemoryError
            return super().step(closure)

    model, messages = build("Bert"), []
    trainer = make_trainer(tmp_path, model=model, optimizers=sgd_of(model, FailingOnce), report=messages.append)
    trainer.train()
    assert trainer.state.global_step == 2
    assert messages == ["out of memory in optimizer step 1: trying again after freeing all cached memory"]


def test_a_given_optimizer_runs_in_the_backward_pass_if_the_recipe_says_so(tmp_path: Path) -> None:
    model = build("Bert")
    trainer = make_trainer(tmp_path, "optimizer-in-backward", model=model, optimizers=sgd_of(model))
    before = weights_of(trainer)
    _, gradients = step_of(trainer, make_batch(ROWS, longest=LENGTH, seed=5))
    assert gradients == []
    assert not torch.equal(trainer.model.classifier.weight, before["classifier.weight"])


def test_a_given_optimizer_class_is_used(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, optimizer_cls_and_kwargs=(torch.optim.SGD, {"lr": 0.5}))
    trainer.train()
    assert type(trainer.inner_optimizer) is torch.optim.SGD
    assert trainer.inner_optimizer.defaults["lr"] == 0.5


def test_create_optimizer_and_scheduler_can_be_called(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    trainer.create_optimizer_and_scheduler(num_training_steps=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            step_of(trainer, make_batch(ROWS, longest=LENGTH, seed=5))
            trainer.optimizer.step()
            trainer.lr_scheduler.step()
    assert trainer.lr_scheduler.get_last_lr()[0] == pytest.approx(trainer.args.learning_rate / 2)
    trainer.train()
    assert trainer.state.global_step == 2


def test_evaluation_in_chunks_gives_the_metrics_of_whole_batches(tmp_path: Path) -> None:
    whole, chunked = make_trainer(tmp_path / "a"), make_trainer(tmp_path / "b")
    chunked.recovery.evaluation_limits.tighten({1: 3})
    sizes: list[int] = []
    chunked.model.register_forward_pre_hook(
        lambda module, args, kwargs: sizes.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    found, expected = chunked.evaluate(), whole.evaluate()
    assert sizes == [3, 3, 2]
    for name in ("eval_loss", "eval_f1", "eval_accuracy"):
        assert found[name] == pytest.approx(expected[name], rel=1e-5)


def test_a_nan_validation_loss_stops_the_run(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    with torch.no_grad():
        trainer.model.classifier.bias.fill_(float("nan"))
    with pytest.raises(LossNotFinite, match=r"The validation loss became nan after 0 steps.*no checkpoint had been"):
        trainer.evaluate()


@pytest.mark.parametrize("chunk_rows", [3, 8])
def test_evaluation_without_metrics_gives_the_loss_of_whole_batches(tmp_path: Path, chunk_rows: int) -> None:
    """transformers then asks for the loss alone."""
    whole = make_trainer(tmp_path, compute_metrics=None)
    chunked = make_trainer(tmp_path, compute_metrics=None)
    chunked.recovery.evaluation_limits.tighten({1: chunk_rows})
    assert chunked.evaluate()["eval_loss"] == pytest.approx(whole.evaluate()["eval_loss"], rel=1e-5)


@pytest.mark.parametrize("chunk_rows", [3, 8])
def test_rows_without_labels_are_predicted(tmp_path: Path, chunk_rows: int) -> None:
    trainer = make_trainer(tmp_path)
    trainer.recovery.evaluation_limits.tighten({1: chunk_rows})
    batch = make_batch(ROWS, longest=LENGTH, seed=5)
    rows = rows_of(batch)
    for row in rows:
        del row["labels"]
    found = trainer.predict(rows)
    with torch.no_grad():
        expected = trainer.model.eval()(batch["input_ids"], batch["attention_mask"]).logits
    torch.testing.assert_close(torch.from_numpy(found.predictions), expected, rtol=1e-4, atol=1e-5)
    assert "test_loss" not in found.metrics


def test_the_metrics_of_an_evaluation_have_the_given_prefix(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    assert {"held_loss", "held_f1"} <= set(trainer.evaluate(metric_key_prefix="held"))
    datasets = dict.fromkeys(("near", "far"), trainer.eval_dataset)
    assert {"eval_near_loss", "eval_far_f1"} <= set(trainer.evaluate(datasets))
