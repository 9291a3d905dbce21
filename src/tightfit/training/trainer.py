"""Trainer: transformers.Trainer with micro-batches, the recipe's optimizer, OOM recovery and a memory meter."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import PrinterCallback

from tightfit.data.batches import BucketSampler, LengthBuckets
from tightfit.engine.class_loss import ClassLoss
from tightfit.engine.meter import Meter
from tightfit.engine.micro_batch_loss import label_counts, weighted_micro_batches
from tightfit.engine.step import clip_gradients, train_batch
from tightfit.errors import BadInput, OutOfMemory
from tightfit.messages import msg
from tightfit.strategies.parts import Parts
from tightfit.training.checkpoints import latest_valid_checkpoint
from tightfit.training.finite import SkippedSteps, check_finite
from tightfit.training.phases import PhaseCallback
from tightfit.training.preflight import WorstBatch, run_preflight
from tightfit.training.recovery import Log, PartialStep, Recovery
from tightfit.training.trainer_checkpoints import CheckpointTrainer

if TYPE_CHECKING:
    from tightfit.data.batches import Batch


class Trainer(CheckpointTrainer):
    """transformers.Trainer with another step, optimizer and checkpoint format, and with a memory meter."""

    def __init__(
        self,
        *,
        parts: Parts,
        meter: Meter,
        buckets: LengthBuckets | None = None,
        report: Log = lambda line: None,
        on_loss: Callable[[float], None] = lambda loss: None,
        worst: WorstBatch | None = None,
        loss: ClassLoss | None = None,
        metrics_of_loss: Callable[[float], dict[str, float]] = lambda loss: {},
        **kwargs: Any,
    ) -> None:
        self.buckets, self.loss = buckets, loss
        super().__init__(model=parts.model, **kwargs)
        if self.args.gradient_accumulation_steps > 1:
            raise BadInput(
                msg(
                    "gradient_accumulation_steps cannot be used: per_device_train_batch_size is the whole batch of a "
                    "step, and the strategy micro-batch splits it."
                )
            )
        self.parts, self.meter, self.report, self.on_loss = parts, meter, report, on_loss
        self.metrics_of_loss = metrics_of_loss
        self.recovery = Recovery(parts, report)
        self.worst = worst
        """The batches to try before the first step; None for no pre-flight."""
        self.preflight_seconds = 0.0
        self.skipped = SkippedSteps(lambda: self.accelerator.scaler)
        if self.optimizer is not None:
            self._take_over(self.optimizer)
        self.remove_callback(PrinterCallback)
        self.add_callback(PhaseCallback(meter, lambda: self.on_ready()))
        self.add_callback(self.skipped)

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """Train to the end. After a partial step it resumes from the last checkpoint."""
        while True:
            try:
                return super().train(resume_from_checkpoint, **kwargs)
            except PartialStep as error:
                message = msg("{message}; some weights were already updated", message=error.message)
            except Exception as error:
                message = self.recovery.on_other_oom(error, self.state.global_step)
            self.drop_state()
            checkpoint, _ = latest_valid_checkpoint(Path(self.args.output_dir))
            if checkpoint is None or self.args.save_only_model:
                raise OutOfMemory(msg("{message}, and there is no checkpoint to resume from.", message=message))
            name = checkpoint.name
            self.report(msg("{message}, so training resumes from {checkpoint}", message=message, checkpoint=name))
            resume_from_checkpoint = str(checkpoint)

    def on_ready(self) -> None:
        """Run before the first step, or the first step after a resume: checkpoint-0, pre-flight, loss totals."""
        self.save_start()
        if self.worst is not None:
            self.preflight_seconds = run_preflight(self, self.worst)
            self.worst = None  # once is enough, also if a partial step resumes from a checkpoint
        self.load_totals()

    # The step

    def training_step(
        self, model: torch.nn.Module, inputs: Batch, num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """Forward and backward of the effective batch in micro-batches; `num_items_in_batch` is not used."""
        if callable(train := getattr(self.optimizer, "train", None)):  # an optimizer without a schedule has two modes
            train()
        loss = self.recovery.train(lambda: self._run_batch(model, inputs), self.inner_optimizer, self.state.global_step)
        check_finite(msg("loss"), float(loss), self.args, self.state)
        self.on_loss(float(loss))
        return loss

    def _run_batch(self, model: torch.nn.Module, inputs: Batch) -> torch.Tensor:
        batch, sort = self._prepare_inputs(inputs), self.parts.step_batching.sorts
        limits = self.recovery.micro_batch_limits
        weights = self.loss.weights if self.loss else None
        weighted = self.recovery.tracking(
            weighted_micro_batches(self.model, batch, limits, sort=sort, class_weights=weights)
        )
        loss_fn = self._loss
        if self.loss_is_scaled_for_ga:  # a subclass divides by the number of labels in the whole batch
            weighted = ((1.0, micro_batch) for _, micro_batch in weighted)
            loss_fn = functools.partial(self._loss, labels=self._label_count(batch))
        return train_batch(model, weighted, loss_fn, self.accelerator.backward, self.meter.phase)

    def _loss(self, model: torch.nn.Module, micro_batch: Batch, labels: float | None = None) -> torch.Tensor:
        """The loss by `compute_loss`, as a mean over the labels of the micro-batch.

        Where it is the user's own, `num_items_in_batch` is the micro-batch's number of labels, so that the loss is a
        mean whether it divides by that number or takes the mean itself.
        """
        if self._has_own_loss and labels is None:
            labels = self._label_count(micro_batch)
        items = None if labels is None else torch.tensor(labels, device=self.args.device)
        with self.compute_loss_context_manager():
            loss: torch.Tensor = self.compute_loss(model, micro_batch, num_items_in_batch=items)
        return loss

    def compute_loss(
        self, model: torch.nn.Module, inputs: Batch, return_outputs: bool = False, *args: Any, **kwargs: Any
    ) -> Any:
        """The head's loss, or that of the job's own loss settings."""
        if self.loss is None:
            return super().compute_loss(model, inputs, return_outputs, *args, **kwargs)
        loss, outputs = self.loss.with_outputs(model, inputs)
        return (loss, outputs) if return_outputs else loss

    @property
    def _has_own_loss(self) -> bool:
        overridden = getattr(self.compute_loss, "__func__", None) is not Trainer.compute_loss
        return overridden or self.compute_loss_func is not None

    def _label_count(self, batch: Batch) -> float:
        """The labels of a batch, by the weights of their classes if they have some."""
        return sum(label_counts(self.model, batch, self.loss.weights if self.loss else None))

    def _clip_grad_norm(self, model: torch.nn.Module) -> Any:
        norm, phase, clip = self.args.max_grad_norm, self.meter.phase, self.accelerator.clip_grad_norm_
        if self.accelerator.scaler is not None:  # it refuses to unscale the same gradients twice
            return clip_gradients(model, norm, phase, clip)
        return self.recovery.step(  # clipping allocates before it changes a gradient
            lambda: clip_gradients(model, norm, phase, clip), self.inner_optimizer, self.state.global_step
        )

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm)
        if self.accelerator.scaler is None:  # a gradient scaler skips steps that overflow
            check_finite(msg("gradient"), float(norm), self.args, self.state)
        return norm

    # The optimizer

    def create_optimizer(self, model: torch.nn.Module | None = None) -> torch.optim.Optimizer:
        """The given optimizer, or the recipe's, built as the simulation builds it."""
        if self.optimizer is None:
            is_given = self.optimizer_cls_and_kwargs is not None
            self.optimizer = self._take_over(super().create_optimizer(model) if is_given else None)
        return self.optimizer

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
        """Length buckets, if the recipe uses them."""
        if self.buckets is None:
            return super()._get_train_sampler(*args, **kwargs)
        return BucketSampler(self.buckets, self.args.seed)

    # Evaluation

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        with self.meter.phase("evaluate"):
            metrics: dict[str, float] = super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        if (loss := metrics.get(f"{metric_key_prefix}_loss")) is not None:  # there is none without labels
            check_finite(msg("validation loss"), loss, self.args, self.state)
        return metrics

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """The metrics of an evaluation, also those that follow from its loss."""
        output = super().evaluation_loop(*args, **kwargs)
        prefix = kwargs.get("metric_key_prefix", "eval")
        if (loss := output.metrics.get(f"{prefix}_loss")) is not None:
            found = self.metrics_of_loss(float(loss))
            output.metrics.update({f"{prefix}_{name}": value for name, value in found.items()})
        return output

    def collate_rows(self, dataset: Any, rows: list[int]) -> Batch:
        """The batch of these rows, as the data loader delivers it."""
        collate = self._get_collator_with_removed_columns(self.data_collator)
        fetch = getattr(dataset, "__getitems__", None)  # several rows at once, where the data set can
        return dict(collate(fetch(rows) if fetch else [dataset[row] for row in rows]))

    def prepare_rows(self, dataset: Any, rows: list[int]) -> Batch:
        """The batch of these rows, on the device."""
        return dict(self._prepare_inputs(self.collate_rows(dataset, rows)))
