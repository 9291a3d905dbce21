"""Trainer: transformers.Trainer with a sliced step, the recipe's optimizer and a meter."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from transformers import PrinterCallback, TrainerCallback, TrainerState

from tightfit.compat import forget_unscaled, nested_concat
from tightfit.data.batches import BucketSampler, LengthBuckets
from tightfit.engine.assembly import build_optimizer
from tightfit.engine.meter import OTHER, Meter
from tightfit.engine.oom import free_memory
from tightfit.engine.step import label_counts, run_micro_batches, weighted_micro_batches
from tightfit.errors import LossNotFinite, OutOfMemory
from tightfit.optimizers.in_backward import forget_norms
from tightfit.runs.folder import latest_checkpoint
from tightfit.strategies.parts import Parts
from tightfit.training.checkpoints import (
    find_corruption,
    latest_valid_checkpoint,
    load_weights_in_place,
    loading,
    read_manifest,
    rotate_checkpoints,
    write_manifest,
    writing_checkpoint,
)
from tightfit.training.preflight import WorstBatch, run_preflight
from tightfit.training.recovery import Log, PartialStep, Recovery
from tightfit.training.setup import SAVE_TOTAL_LIMIT, checkpoint_bytes

if TYPE_CHECKING:
    from tightfit.data.batches import Batch


class Trainer(transformers.Trainer):
    """The step, the optimizer, the checkpoints and the meter are ours; everything else is transformers'."""

    def __init__(
        self,
        *,
        parts: Parts,
        meter: Meter,
        buckets: LengthBuckets | None = None,
        report: Log = lambda line: None,
        worst: WorstBatch | None = None,
        **kwargs: Any,
    ) -> None:
        self.optimizer: torch.optim.Optimizer | None
        self.buckets = buckets
        super().__init__(model=parts.model, **kwargs)
        self.parts, self.meter, self.report = parts, meter, report
        self.recovery = Recovery(parts, report)
        self.worst = worst
        """What to fly before the first step; None flies nothing."""
        self.preflight_seconds = 0.0
        self._resumed: Path | None = None
        self.remove_callback(PrinterCallback)
        self.add_callback(_Moments(self))

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """To the end. A step that was left half done is taken back by going on from the last checkpoint."""
        while True:
            try:
                return super().train(resume_from_checkpoint, **kwargs)
            except PartialStep as half_done:
                done = f"{half_done}; the step was half done"
            except Exception as error:
                done = self.recovery.on_other_oom(error, self.state.global_step)
            self._drop_state()
            checkpoint, _ = latest_valid_checkpoint(Path(self.args.output_dir))
            if checkpoint is None:
                raise OutOfMemory(f"{done}, and there is no checkpoint to go back to.")
            self.report(f"{done}, so from {checkpoint.name} again")
            resume_from_checkpoint = str(checkpoint)

    def training_step(
        self, model: torch.nn.Module, inputs: Batch, num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """The whole effective batch in slices; Trainer's own count of items plays no part."""
        model.train()
        loss = self.recovery.train(
            lambda: self._run_batch(model, inputs), self._own_optimizer(), self.state.global_step
        )
        self._refuse_non_finite("loss", float(loss))
        return loss

    def _run_batch(self, model: torch.nn.Module, inputs: Batch) -> torch.Tensor:
        batch, layered = self._prepare_inputs(inputs), self.parts.layer_rows is not None
        slices = weighted_micro_batches(self.model, batch, self.recovery.slices, sort=layered)
        return run_micro_batches(model, self.recovery.watched(slices), self.accelerator.backward, self.meter.phase)

    def create_optimizer(self, model: torch.nn.Module | None = None) -> torch.optim.Optimizer:
        """The optimizer of the recipe, built as the rehearsal builds it."""
        if self.optimizer is None:
            self.optimizer = build_optimizer(self.parts)
            if not self.parts.step_in_backward:
                self._make_step_safe(self.optimizer)
        return self.optimizer

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
        """Rows of like length together, where the recipe says so."""
        if self.buckets is None:
            return super()._get_train_sampler(*args, **kwargs)
        return BucketSampler(self.buckets, self.args.seed)

    def _make_step_safe(self, optimizer: torch.optim.Optimizer) -> None:
        take = optimizer.step

        def step(closure: Any = None) -> Any:
            return self.recovery.step(lambda: take(closure), optimizer, self.state.global_step)

        optimizer.step = step

    def _own_optimizer(self) -> torch.optim.Optimizer:
        """The recipe's, without accelerate around it."""
        return getattr(self.optimizer, "optimizer", self.optimizer)

    def prediction_step(
        self, model: torch.nn.Module, inputs: Batch, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> Any:
        """A batch of the evaluation, in as many pieces as memory asks for."""
        predict = super().prediction_step
        answers = self.recovery.evaluate(
            lambda chunk: predict(model, chunk, prediction_loss_only, ignore_keys=ignore_keys), dict(inputs)
        )
        return answers[0] if len(answers) == 1 else self._concat(answers)

    def _concat(self, answers: list[Any]) -> Any:
        """The answers of the pieces as those of one batch; its loss is the mean over all labels."""
        losses, logits, labels = zip(*answers, strict=True)
        counts = [sum(label_counts(self.model, each)) for each in labels]
        loss = sum(loss * (count / sum(counts)) for loss, count in zip(losses, counts, strict=True))
        return loss, functools.reduce(nested_concat, logits), functools.reduce(nested_concat, labels)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        with self.meter.phase("evaluate"):
            metrics = super().evaluate(*args, **kwargs)
        self._refuse_non_finite("validation loss", metrics["eval_loss"])
        return metrics

    def _clip_grad_norm(self, model: torch.nn.Module) -> Any:
        self.meter.begin("step")
        return super()._clip_grad_norm(model)

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm)
        if self.accelerator.scaler is None:  # a scaler skips steps that overflow, which is its job
            self._refuse_non_finite("gradient", float(norm))
        return norm

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Of epochs with one F1 the one with the lowest loss: small validation sets have many ties."""
        if super()._determine_best_metric(metrics, trial):
            return True
        history = [entry for entry in self.state.log_history if "eval_loss" in entry]
        best = next((e["eval_loss"] for e in history if e["step"] == self.state.best_global_step), -math.inf)
        if metrics["eval_f1"] != self.state.best_metric or metrics["eval_loss"] >= best:
            return False
        self.state.best_global_step = self.state.global_step
        return True

    def _finalize_training(self, *args: Any, **kwargs: Any) -> Any:
        """The best checkpoint is in this folder, wherever the folder was when it was written."""
        best = Path(self.args.output_dir) / f"checkpoint-{self.state.best_global_step}"
        at_hand = self.state.best_global_step == self.state.global_step
        damage = find_corruption(best) if best.is_dir() and not at_hand else None
        if damage is not None:
            self.report(f"{best.name} was the best, but {damage}: the weights of the last step are kept")
            self.state.best_global_step = self.state.global_step
        self.state.best_model_checkpoint = str(best) if best.is_dir() and damage is None else None
        return super()._finalize_training(*args, **kwargs)

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        """Everything that going on needs, whole or not at all."""
        folder, step = Path(self.args.output_dir), self.state.global_step
        self.store_flos()
        with (
            self.meter.phase("save"),
            writing_checkpoint(folder, step, checkpoint_bytes(self.parts, self._own_optimizer())) as aside,
        ):
            self._save(str(aside), self.parts.checkpoint_weights)
            self._save_optimizer_and_scheduler(str(aside))
            self._save_scaler(str(aside))
            self._save_rng_state(str(aside))
            self.state.save_to_json(str(aside / "trainer_state.json"))
            write_manifest(aside, {"row_limits": self.recovery.table(), "losses": self._losses()})
        best = folder / f"checkpoint-{self.state.best_global_step}"
        self.state.best_model_checkpoint = str(best) if best.is_dir() else None
        rotate_checkpoints(folder, SAVE_TOTAL_LIMIT, best)

    def _losses(self) -> dict[str, float]:
        """The losses since the last line of the log, and those before; transformers would begin them anew."""
        since_logged = {"loss_since_log": float(self._tr_loss), "logged_at": self._globalstep_last_logged}
        return {**since_logged, "loss_total": self._total_loss_scalar}

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: torch.nn.Module | None = None) -> None:
        """Tensor by tensor, and with it what was learned about memory."""
        self._resumed = Path(resume_from_checkpoint)
        with loading(self._resumed):
            TrainerState.load_from_json(str(self._resumed / "trainer_state.json"))
            self.recovery.learn(read_manifest(self._resumed)["row_limits"])
            self._load_weights(self._resumed)

    def _load_weights(self, checkpoint: Path) -> None:
        """What a checkpoint holds; where the base model stays as it was, all else is there already."""
        if not load_weights_in_place(checkpoint / "model.safetensors", self.model):
            super()._load_from_checkpoint(str(checkpoint), self.model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with loading(checkpoint):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_scaler(self, checkpoint: str | None) -> None:
        with loading(checkpoint):
            super()._load_scaler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with loading(checkpoint):
            super()._load_rng_state(checkpoint)

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        """transformers would take one more step when it goes on from a checkpoint of the last one."""
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)

    def begin(self) -> None:
        """Everything is ready for the first step, or for going on."""
        self.meter.begin(OTHER)
        if self._resumed is None:
            self._save_checkpoint(self.model, None)  # the beginning, to go back to until there is another
        if self.worst is not None:
            self.preflight_seconds = run_preflight(self, self.worst)
            self.worst = None  # once is enough, also where a step goes back to a checkpoint
        if self._resumed is not None:
            losses = read_manifest(self._resumed)["losses"]
            self._tr_loss += losses["loss_since_log"]
            self._globalstep_last_logged, self._total_loss_scalar = losses["logged_at"], losses["loss_total"]
            self._initial_global_step = 0

    def try_step(self, rows: list[int]) -> None:
        """Forward, backward and step, as of a training batch with these rows; the schedule does not move."""
        self.try_batch(rows, keep_gradients=True)
        for parameter in self.model.parameters():
            if parameter.grad is not None:  # in fp16 it is scaled and may be infinite, which only a scaler would see
                parameter.grad.zero_()
        with self.meter.phase("step"):
            self._own_optimizer().step()
        self.model.zero_grad()

    def try_batch(self, rows: list[int], *, keep_gradients: bool = False) -> None:
        """Forward and backward, as of a training batch with these rows."""
        self.training_step(self.model_wrapped, self.collate_rows(self.train_dataset, rows))
        if not keep_gradients:
            self.model.zero_grad()

    def try_evaluation(self, rows: list[int]) -> None:
        """One batch of the evaluation."""
        self.model.eval()
        with self.meter.phase("evaluate"):
            self.prediction_step(self.model_wrapped, self.collate_rows(self.eval_dataset, rows), False)

    def restore(self) -> None:
        """Weights and optimizer state as saved in the checkpoint that the training goes on from, or begins with."""
        self._drop_state()
        with self.meter.phase("load-best"):
            self._load_weights(self._resumed or Path(self.args.output_dir) / "checkpoint-0")
        if self._resumed is not None:
            self._load_optimizer_and_scheduler(str(self._resumed))
        self.model.train()

    def _drop_state(self) -> None:
        """Of gradients and of the optimizer's state: a checkpoint brings its own, and there may be no room for two."""
        self.model.zero_grad()
        if self.optimizer is not None:
            self._own_optimizer().state.clear()
            forget_norms(self._own_optimizer())
        if self.accelerator.scaler is not None:  # else it would take the next gradients for unscaled ones
            forget_unscaled(self.accelerator.scaler)
        free_memory()

    def collate_rows(self, dataset: Any, rows: list[int]) -> Batch:
        """As the loaders deliver them."""
        collate = self._get_collator_with_removed_columns(self.data_collator)
        return dict(collate(dataset.__getitems__(rows)))

    def prepare_rows(self, dataset: Any, rows: list[int]) -> Batch:
        """The batch of these rows, on the device."""
        return dict(self._prepare_inputs(self.collate_rows(dataset, rows)))

    def _load_best_model(self) -> None:
        """Weights of the best epoch, tensor by tensor: never a second set of them in memory."""
        if self.state.best_global_step == self.state.global_step:
            return  # the best weights are the ones at hand
        with self.meter.phase("load-best"):
            self._load_weights(Path(self.state.best_model_checkpoint))

    def _refuse_non_finite(self, what: str, value: float) -> None:
        if math.isfinite(value):
            return
        saved = latest_checkpoint(Path(self.args.output_dir))
        kept = f"{saved} holds the last good weights" if saved else "no checkpoint had been written yet"
        raise LossNotFinite(
            f"The {what} became {value} after {self.state.global_step} good steps, so the run stopped; {kept}. "
            f"Try --learning-rate {self.args.learning_rate / 4:g}, or leave out mixed-precision if it is in use."
        )


class _Moments(TrainerCallback):
    """Tells the trainer when all is ready, and its meter when the optimizer works."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.trainer.begin()

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self.trainer.meter.begin("step")

    def on_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self.trainer.meter.begin(OTHER)
