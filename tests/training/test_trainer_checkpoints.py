"""The Trainer's checkpoints: what they hold, which stay, which one is the best, and resuming after a failed step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from trainers import make_trainer, scripted, weights_of
from transformers import EarlyStoppingCallback
from transformers.trainer_utils import SaveStrategy

from tightfit.errors import OutOfMemory
from tightfit.runs.folder import checkpoints_in
from tightfit.training.checkpoints import find_corruption, read_manifest
from tightfit.training.preflight import try_step
from tightfit.training.recovery import PartialStep


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in checkpoints_in(folder))


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
    totals = manifest["totals"]
    assert totals["loss_total"] + totals["loss_since_log"] == pytest.approx(sum(losses))
    assert {"model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"} <= set(manifest["files"])


def test_restore_undoes_a_trial_step(tmp_path: Path) -> None:
    trainer, tried = make_trainer(tmp_path), []
    before, on_ready = weights_of(trainer), trainer.on_ready

    def try_and_restore() -> None:
        on_ready()  # writes checkpoint-0
        try_step(trainer, [0, 1, 2])
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


def test_out_of_memory_ends_a_run_whose_checkpoints_hold_only_the_model(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, settings={"save_only_model": True})

    def fail(*args: Any) -> None:
        raise PartialStep("out of memory")

    trainer.training_step = fail
    with pytest.raises(OutOfMemory, match="there is no checkpoint to resume from"):
        trainer.train()


def test_checkpoints_hold_only_the_model_if_asked(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, settings={"save_only_model": True})
    trainer.train()
    files = set(read_manifest(tmp_path / "checkpoint-2")["files"])
    assert {"model.safetensors", "config.json", "trainer_state.json"} <= files
    assert not files & {"optimizer.pt", "scheduler.pt", "rng_state.pth"}


@pytest.mark.parametrize(
    ("limit", "kept"),
    [(None, [2, 4, 6, 8]), (3, [2, 6, 8]), (2, [2, 8]), (1, [2])],
)
def test_the_given_number_of_checkpoints_stays(tmp_path: Path, limit: int | None, kept: list[int]) -> None:
    """The best one, here the first, and the last stay; with a limit of 1 transformers removes the last at the end."""
    metrics = scripted("f1", (0.9, 0.5, 0.4, 0.3))
    make_trainer(tmp_path, max_steps=8, compute_metrics=metrics, settings={"save_total_limit": limit}).train()
    assert names(tmp_path) == [f"checkpoint-{step}" for step in kept]


def test_no_checkpoint_stays_without_a_save_strategy(tmp_path: Path) -> None:
    settings = {"save_strategy": SaveStrategy.NO, "load_best_model_at_end": False}
    trainer = make_trainer(tmp_path, settings=settings)
    trainer.train()
    assert trainer.state.global_step == 2
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_should_not_save_writes_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(tmp_path)
    monkeypatch.setattr(type(trainer.args), "should_save", False)
    trainer.train()
    assert names(tmp_path) == []


def test_checkpoints_are_pushed_to_the_hub_if_asked(tmp_path: Path) -> None:
    trainer, pushed = make_trainer(tmp_path), []
    trainer.args.push_to_hub = True
    trainer._push_from_checkpoint = lambda folder: pushed.append(Path(folder).name)
    trainer.train()
    assert pushed == ["checkpoint-0", "checkpoint-2"]


@pytest.mark.parametrize(
    ("metric", "greater", "values", "best"),
    [
        ("f1", True, (0.5, 0.9, 0.4), 4),
        ("mean_error", False, (0.5, 0.9, 0.4), 6),
        ("eval_mean_error", False, (0.3, 0.9, 0.4), 2),
    ],
)
def test_the_best_checkpoint_is_that_of_the_given_metric(
    tmp_path: Path, metric: str, greater: bool, values: tuple[float, ...], best: int
) -> None:
    settings = {"metric_for_best_model": metric, "greater_is_better": greater, "save_total_limit": None}
    metrics = scripted(metric.removeprefix("eval_"), values)
    trainer = make_trainer(tmp_path, max_steps=6, compute_metrics=metrics, settings=settings)
    trainer.train()
    assert trainer.state.best_global_step == best
    other = make_trainer(tmp_path)
    other._load_weights(tmp_path / f"checkpoint-{best}")
    expected = weights_of(other)
    assert all(torch.equal(weight, expected[name]) for name, weight in weights_of(trainer).items())


def test_the_loss_can_be_the_metric_and_needs_no_other(tmp_path: Path) -> None:
    settings = {"metric_for_best_model": "loss", "greater_is_better": False}
    trainer = make_trainer(tmp_path, max_steps=4, compute_metrics=None, settings=settings)
    trainer.train()
    losses = {entry["step"]: entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry}
    assert trainer.state.best_global_step == min(losses, key=lambda step: losses[step])


@pytest.mark.parametrize(("losses", "best"), [((0.5, 0.4, 0.6), 4), ((0.5, 0.5, 0.6), 2), ((0.5, None, 0.6), 2)])
def test_among_equal_metrics_the_lowest_loss_is_best(tmp_path: Path, losses: tuple[Any, ...], best: int) -> None:
    trainer = make_trainer(tmp_path, settings={"metric_for_best_model": "accuracy"})
    for number, loss in enumerate(losses, 1):
        metrics = {"eval_accuracy": 0.7} | ({} if loss is None else {"eval_loss": loss})
        trainer.state.global_step = 2 * number
        trainer.state.log_history.append({**metrics, "step": 2 * number})
        trainer._determine_best_metric(metrics, None)
    assert trainer.state.best_global_step == best


def test_early_stopping_keeps_its_patience_when_resumed(tmp_path: Path) -> None:
    """Two evaluations without improvement before the interruption, one after it."""
    settings = {"restore_callback_states_from_checkpoint": True}
    stopping = EarlyStoppingCallback(early_stopping_patience=3)
    first = make_trainer(
        tmp_path, max_steps=6, compute_metrics=scripted("f1", (0.9, 0.5, 0.4)), callbacks=[stopping], settings=settings
    )
    first.train()
    assert stopping.early_stopping_patience_counter == 2
    again = make_trainer(
        tmp_path,
        max_steps=20,
        compute_metrics=scripted("f1", (0.3, 0.2, 0.1)),
        callbacks=[EarlyStoppingCallback(early_stopping_patience=3)],
        settings=settings,
    )
    again.train(str(tmp_path / "checkpoint-6"))
    assert again.state.global_step == 8
    assert again.state.best_global_step == 2
