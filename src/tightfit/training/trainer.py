"""Trainer: transformers.Trainer with micro-batches, the recipe's optimizer, OOM recovery and a memory meter."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from transformers import PrinterCallback, TrainerCallback, TrainerState

from tightfit.compat import nested_concat, reset_unscaled
from tightfit.data.batches import BucketSampler, LengthBuckets
from tightfit.engine.assembly import build_optimizer
from tightfit.engine.meter import OTHER, Meter
from tightfit.engine.oom import free_memory
from tightfit.engine.step import label_counts, run_micro_batches, weighted_micro_batches
from tightfit.errors import LossNotFinite, OutOfMemory
from tightfit.optimizers.in_backward import reset_grad_norms
from tightfit.runs.folder import latest_checkpoint
from tightfit.strategies.parts import Parts
from tightfit.training.checkpoints import (
    as_load_error,
    find_corruption,
    latest_valid_checkpoint,
    load_weights_in_place,
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
    """transformers.Trainer with another step, optimizer and checkpoint format, and with a memory meter."""

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
        """The batches to try before the first step; None for no pre-flight."""
        self.preflight_seconds = 0.0
        self._resumed: Path | None = None
        self.remove_callback(PrinterCallback)
        self.add_callback(_PhaseCallback(self))

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """Train to the end. After a partial step it resumes from the last checkpoint."""
        while True:
            try:
                return super().train(resume_from_checkpoint, **kwargs)
            except PartialStep as error:
                message = f"{error}; some weights were already updated"
            except Exception as error:
                message = self.recovery.on_other_oom(error, self.state.global_step)
            self._drop_state()
            checkpoint, _ = latest_valid_checkpoint(Path(self.args.output_dir))
            if checkpoint is None:
                raise OutOfMemory(f"{message}, and there is no checkpoint to resume from.")
            self.report(f"{message}, so training resumes from {checkpoint.name}")
            resume_from_checkpoint = str(checkpoint)

    def training_step(
        self, model: torch.nn.Module, inputs: Batch, num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """Forward and backward of the effective batch in micro-batches; `num_items_in_batch` is not used."""
        model.train()
        loss = self.recovery.train(
            lambda: self._run_batch(model, inputs), self._unwrapped_optimizer(), self.state.global_step
        )
        self._check_finite("loss", float(loss))
        return loss

    def _run_batch(self, model: torch.nn.Module, inputs: Batch) -> torch.Tensor:
        batch, sort = self._prepare_inputs(inputs), self.parts.step_batching.sorts
        limits = self.recovery.micro_batch_limits
        micro_batches = self.recovery.tracking(weighted_micro_batches(self.model, batch, limits, sort=sort))
        return run_micro_batches(model, micro_batches, self.accelerator.backward, self.meter.phase)

    def create_optimizer(self, model: torch.nn.Module | None = None) -> torch.optim.Optimizer:
        """The recipe's optimizer, built as the simulation builds it."""
        if self.optimizer is None:
            self.optimizer = build_optimizer(self.parts)
            if not self.parts.stepping.in_backward:
                self._recover_in_step(self.optimizer)
        return self.optimizer

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
        """Length buckets, if the recipe uses them."""
        if self.buckets is None:
            return super()._get_train_sampler(*args, **kwargs)
        return BucketSampler(self.buckets, self.args.seed)

    def _recover_in_step(self, optimizer: torch.optim.Optimizer) -> None:
        original = optimizer.step

        def step(closure: Any = None) -> Any:
            return self.recovery.step(lambda: original(closure), optimizer, self.state.global_step)

        optimizer.step = step

    def _unwrapped_optimizer(self) -> torch.optim.Optimizer:
        """The recipe's optimizer without accelerate's wrapper."""
        return getattr(self.optimizer, "optimizer", self.optimizer)

    def prediction_step(
        self, model: torch.nn.Module, inputs: Batch, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> Any:
        """One evaluation batch, in as many chunks as memory requires."""
        predict = super().prediction_step
        outputs = self.recovery.evaluate(
            lambda chunk: predict(model, chunk, prediction_loss_only, ignore_keys=ignore_keys), dict(inputs)
        )
        return outputs[0] if len(outputs) == 1 else self._concat(outputs)

    def _concat(self, outputs: list[Any]) -> Any:
        """The outputs of the chunks as those of one batch; its loss is the mean over all labels."""
        losses, logits, labels = zip(*outputs, strict=True)
        counts = [sum(label_counts(self.model, each)) for each in labels]
        loss = sum(loss * (count / sum(counts)) for loss, count in zip(losses, counts, strict=True))
        return loss, functools.reduce(nested_concat, logits), functools.reduce(nested_concat, labels)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        with self.meter.phase("evaluate"):
            metrics = super().evaluate(*args, **kwargs)
        self._check_finite("validation loss", metrics["eval_loss"])
        return metrics

    def _clip_grad_norm(self, model: torch.nn.Module) -> Any:
        self.meter.begin("step")
        return super()._clip_grad_norm(model)

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm)
        if self.accelerator.scaler is None:  # a gradient scaler skips steps that overflow
            self._check_finite("gradient", float(norm))
        return norm

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Among epochs with an equal metric the lowest loss wins: small validation sets have many ties."""
        if super()._determine_best_metric(metrics, trial):
            return True
        history = [entry for entry in self.state.log_history if "eval_loss" in entry]
        best = next((e["eval_loss"] for e in history if e["step"] == self.state.best_global_step), -math.inf)
        metric = f"eval_{self.args.metric_for_best_model.removeprefix('eval_')}"
        if metrics[metric] != self.state.best_metric or metrics["eval_loss"] >= best:
            return False
        self.state.best_global_step = self.state.global_step
        return True

    def _finalize_training(self, *args: Any, **kwargs: Any) -> Any:
        """Find the best checkpoint by its step, since the folder may have been moved since it was written."""
        best = Path(self.args.output_dir) / f"checkpoint-{self.state.best_global_step}"
        in_memory = self.state.best_global_step == self.state.global_step
        damage = find_corruption(best) if best.is_dir() and not in_memory else None
        if damage is not None:
            self.report(
                f"the best checkpoint was {best.name}, but {damage}: the weights of the last step are used instead"
            )
            self.state.best_global_step = self.state.global_step
        self.state.best_model_checkpoint = str(best) if best.is_dir() and damage is None else None
        return super()._finalize_training(*args, **kwargs)

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        """Write everything needed to resume, atomically."""
        folder, step = Path(self.args.output_dir), self.state.global_step
        self.store_flos()
        with (
            self.meter.phase("save"),
            writing_checkpoint(folder, step, checkpoint_bytes(self.parts, self._unwrapped_optimizer())) as tmp,
        ):
            self._save(str(tmp), self.parts.checkpoint_weights)
            self._save_optimizer_and_scheduler(str(tmp))
            self._save_scaler(str(tmp))
            self._save_rng_state(str(tmp))
            self.state.save_to_json(str(tmp / "trainer_state.json"))
            write_manifest(tmp, {"row_limits": self.recovery.found_limits(), "losses": self._loss_totals()})
        best = folder / f"checkpoint-{self.state.best_global_step}"
        self.state.best_model_checkpoint = str(best) if best.is_dir() else None
        rotate_checkpoints(folder, SAVE_TOTAL_LIMIT, best)

    def _loss_totals(self) -> dict[str, float]:
        """The loss sums since the last log entry and before it, which transformers does not save."""
        since_log = {"loss_since_log": float(self._tr_loss), "logged_at": self._globalstep_last_logged}
        return {**since_log, "loss_total": self._total_loss_scalar}

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: torch.nn.Module | None = None) -> None:
        """Load the weights tensor by tensor, and the row limits found so far."""
        self._resumed = Path(resume_from_checkpoint)
        with as_load_error(self._resumed):
            TrainerState.load_from_json(str(self._resumed / "trainer_state.json"))
            self.recovery.load_limits(read_manifest(self._resumed)["row_limits"])
            self._load_weights(self._resumed)

    def _load_weights(self, checkpoint: Path) -> None:
        """Load the weights in a checkpoint; a frozen base model is not in it and is loaded already."""
        if not load_weights_in_place(checkpoint / "model.safetensors", self.model):
            super()._load_from_checkpoint(str(checkpoint), self.model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with as_load_error(checkpoint):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_scaler(self, checkpoint: str | None) -> None:
        with as_load_error(checkpoint):
            super()._load_scaler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with as_load_error(checkpoint):
            super()._load_rng_state(checkpoint)

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        """transformers would take one more step when it resumes from a checkpoint of the last step."""
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)

    def on_ready(self) -> None:
        """Run before the first step, or the first step after a resume: checkpoint-0, pre-flight, loss totals."""
        self.meter.begin(OTHER)
        if self._resumed is None:
            self._save_checkpoint(self.model, None)  # checkpoint-0, to restore until there is another
        if self.worst is not None:
            self.preflight_seconds = run_preflight(self, self.worst)
            self.worst = None  # once is enough, also if a partial step resumes from a checkpoint
        if self._resumed is not None:
            losses = read_manifest(self._resumed)["losses"]
            self._tr_loss += losses["loss_since_log"]
            self._globalstep_last_logged, self._total_loss_scalar = losses["logged_at"], losses["loss_total"]
            self._initial_global_step = 0

    def try_step(self, rows: list[int]) -> None:
        """Forward, backward and optimizer step of a training batch of these rows; the schedule does not advance."""
        self.try_batch(rows, keep_gradients=True)
        for parameter in self.model.parameters():
            if parameter.grad is not None:  # in fp16 it is scaled and may be infinite, which only a scaler handles
                parameter.grad.zero_()
        with self.meter.phase("step"):
            self._unwrapped_optimizer().step()
        self.model.zero_grad()

    def try_batch(self, rows: list[int], *, keep_gradients: bool = False) -> None:
        """Forward and backward of a training batch of these rows."""
        self.training_step(self.model_wrapped, self.collate_rows(self.train_dataset, rows))
        if not keep_gradients:
            self.model.zero_grad()

    def try_evaluation(self, rows: list[int]) -> None:
        """One evaluation batch of these rows."""
        self.model.eval()
        with self.meter.phase("evaluate"):
            self.prediction_step(self.model_wrapped, self.collate_rows(self.eval_dataset, rows), False)

    def restore(self) -> None:
        """Load weights and optimizer state of the checkpoint that the run resumes from or started with."""
        self._drop_state()
        with self.meter.phase("load-best"):
            self._load_weights(self._resumed or Path(self.args.output_dir) / "checkpoint-0")
        if self._resumed is not None:
            self._load_optimizer_and_scheduler(str(self._resumed))
        self.model.train()

    def _drop_state(self) -> None:
        """Free gradients and optimizer state: a checkpoint has its own, and memory may not suffice for both."""
        self.model.zero_grad()
        if self.optimizer is not None:
            self._unwrapped_optimizer().state.clear()
            reset_grad_norms(self._unwrapped_optimizer())
        if self.accelerator.scaler is not None:  # otherwise it would treat the next gradients as unscaled already
            reset_unscaled(self.accelerator.scaler)
        free_memory()

    def collate_rows(self, dataset: Any, rows: list[int]) -> Batch:
        """The batch of these rows, as the data loader delivers it."""
        collate = self._get_collator_with_removed_columns(self.data_collator)
        return dict(collate(dataset.__getitems__(rows)))

    def prepare_rows(self, dataset: Any, rows: list[int]) -> Batch:
        """The batch of these rows, on the device."""
        return dict(self._prepare_inputs(self.collate_rows(dataset, rows)))

    def _load_best_model(self) -> None:
        """Load the weights of the best epoch tensor by tensor, without a second set of them in memory."""
        if self.state.best_global_step == self.state.global_step:
            return  # the best weights are in memory
        with self.meter.phase("load-best"):
            self._load_weights(Path(self.state.best_model_checkpoint))

    def _check_finite(self, what: str, value: float) -> None:
        if math.isfinite(value):
            return
        saved = latest_checkpoint(Path(self.args.output_dir))
        kept = f"{saved} holds the last good weights" if saved else "no checkpoint had been written yet"
        raise LossNotFinite(
            f"The {what} became {value} after {self.state.global_step} steps, so the run stopped; {kept}. "
            f"Try --learning-rate {self.args.learning_rate / 4:g}, or leave out mixed-precision if it is in use."
        )


class _PhaseCallback(TrainerCallback):
    """Calls the trainer when training is ready to start, and its meter at the start and end of an optimizer step."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.trainer.on_ready()

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self.trainer.meter.begin("step")

    def on_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self.trainer.meter.begin(OTHER)
