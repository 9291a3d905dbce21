"""Trainer: the step, the evaluation, checkpoints, and resuming after a step that failed."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from heads import make_batch
from parts import LENGTH, ROWS, parts_of

from tightfit import Job
from tightfit.data.labels import Labels
from tightfit.engine.meter import meter_for
from tightfit.errors import LossNotFinite, OutOfMemory
from tightfit.tasks.text_classification import TextClassification
from tightfit.training.checkpoints import find_corruption, read_manifest
from tightfit.training.recovery import PartialStep
from tightfit.training.setup import training_arguments
from tightfit.training.trainer import Trainer


class Rows(list[dict[str, torch.Tensor]]):
    """A dataset in memory."""

    def __getitems__(self, rows: list[int]) -> list[dict[str, torch.Tensor]]:
        return [self[row] for row in rows]


def rows_of(batch: dict[str, torch.Tensor]) -> Rows:
    return Rows({key: value[row] for key, value in batch.items()} for row in range(len(batch["labels"])))


def make_trainer(folder: Path, *specs: str, max_steps: int = 2, **kwargs: Any) -> Trainer:
    """A trainer over two batches, with a checkpoint folder of its own."""
    torch.manual_seed(0)
    parts, job = parts_of(*specs), Job(model="m", data="d", max_steps=max_steps)
    batches = [make_batch(ROWS, longest=LENGTH, seed=seed) for seed in (1, 2)]
    return Trainer(
        parts=parts,
        meter=meter_for(parts.device),
        args=training_arguments(job, parts, folder, []),
        train_dataset=Rows(row for batch in batches for row in rows_of(batch)),
        eval_dataset=rows_of(make_batch(ROWS, longest=LENGTH, seed=3)),
        compute_metrics=partial(TextClassification().compute_metrics, labels=Labels()),
        **kwargs,
    )


def weights_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in trainer.model.state_dict().items()}


def test_training_step_accumulates_the_gradient_of_the_whole_batch(tmp_path: Path) -> None:
    trainer, batch = make_trainer(tmp_path, "micro-batch:size=3"), make_batch(ROWS, longest=LENGTH, seed=5)
    reference = copy.deepcopy(trainer.model).train()
    trainer.create_optimizer()
    loss = trainer.training_step(trainer.model, batch)
    expected = reference(**batch).loss
    expected.backward()
    torch.testing.assert_close(loss, expected.detach())
    for ours, theirs in zip(trainer.model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)


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


def test_a_checkpoint_stores_row_limits_and_loss_totals(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    trainer.recovery.micro_batch_limits.tighten({20: 3})
    losses: list[float] = []
    step = trainer.training_step

    def recorded(*args: Any) -> torch.Tensor:
        losses.append(float(loss := step(*args)))
        return loss

    trainer.training_step = recorded
    trainer.train()
    checkpoint = tmp_path / "checkpoint-2"
    assert find_corruption(checkpoint) is None
    manifest = read_manifest(checkpoint)
    assert manifest["row_limits"] == {"micro_batches": {"20": 3}}
    totals = manifest["losses"]
    assert totals["loss_total"] + totals["loss_since_log"] == pytest.approx(sum(losses))
    assert {"model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"} <= set(manifest["files"])


def test_restore_undoes_a_trial_step(tmp_path: Path) -> None:
    trainer, tried = make_trainer(tmp_path), []
    before, on_ready = weights_of(trainer), trainer.on_ready

    def try_and_restore() -> None:
        on_ready()  # writes checkpoint-0
        trainer.try_step([0, 1, 2])
        assert trainer.optimizer.state
        with torch.no_grad():
            trainer.model.classifier.weight.add_(1)
        trainer.restore()
        tried.append((weights_of(trainer), dict(trainer.optimizer.state)))

    trainer.on_ready = try_and_restore
    trainer.train()
    ((restored, state),) = tried
    assert not state
    assert all(torch.equal(weight, before[name]) for name, weight in restored.items())


def test_a_partial_step_resumes_from_the_last_checkpoint(tmp_path: Path) -> None:
    """The weights changed halfway are discarded: the result is that of an uninterrupted training."""
    reference = make_trainer(tmp_path / "reference")
    reference.train()
    messages: list[str] = []
    trainer = make_trainer(tmp_path / "failed", report=messages.append)
    step, failed = trainer.training_step, []

    def failing(*args: Any) -> torch.Tensor:
        if trainer.state.global_step == 1 and not failed:
            failed.append(True)
            with torch.no_grad():
                next(trainer.model.parameters()).add_(1)
            raise PartialStep("out of memory")
        return step(*args)

    trainer.training_step = failing
    trainer.train()
    assert messages == ["out of memory; some weights were already updated, so training resumes from checkpoint-0"]
    assert trainer.state.global_step == 2
    expected = weights_of(reference)
    assert all(torch.equal(weight, expected[name]) for name, weight in trainer.model.state_dict().items())


def test_out_of_memory_before_the_first_checkpoint_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise MemoryError

    trainer = make_trainer(tmp_path)
    monkeypatch.setattr(trainer, "_save_checkpoint", fail)
    with pytest.raises(OutOfMemory, match=r"out of memory around step 1 .*there is no checkpoint to resume from"):
        trainer.train()
