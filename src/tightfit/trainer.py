"""Trainer: transformers.Trainer with a sliced step, the recipe's optimizer and a meter."""

from __future__ import annotations

import math
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from safetensors import safe_open
from transformers import PrinterCallback, TrainerCallback, TrainingArguments

from tightfit.assembly import build_optimizer
from tightfit.data.order import Buckets, BucketSampler
from tightfit.errors import LossNotFinite
from tightfit.job import Job
from tightfit.meter import BETWEEN, Meter
from tightfit.step import run_slices, weighed_slices
from tightfit.strategy import Parts, Precision

if TYPE_CHECKING:
    from tightfit.data.slices import Batch

LOG_EVERY = 10
SAVED_CHECKPOINTS = 2  # the best and the last


class Trainer(transformers.Trainer):
    """The step, the optimizer, the best weights and the meter are ours; everything else is transformers'."""

    def __init__(self, *, parts: Parts, meter: Meter, buckets: Buckets | None = None, **kwargs: Any) -> None:
        self.optimizer: torch.optim.Optimizer | None
        self.buckets = buckets
        super().__init__(model=parts.model, **kwargs)
        self.parts, self.meter = parts, meter
        self.remove_callback(PrinterCallback)
        self.add_callback(_StepMoment(meter))

    def training_step(
        self, model: torch.nn.Module, inputs: Batch, num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        """The whole effective batch in slices; Trainer's own count of items plays no part."""
        model.train()
        slices = weighed_slices(
            self.model, self._prepare_inputs(inputs), self.parts.step_rows, sort=self.parts.layer_rows is not None
        )
        loss = run_slices(model, slices, self.accelerator.backward, self.meter.moment)
        self._refuse_non_finite("loss", float(loss))
        return loss

    def create_optimizer(self, model: torch.nn.Module | None = None) -> torch.optim.Optimizer:
        """The optimizer of the recipe, built as the rehearsal builds it."""
        if self.optimizer is None:
            self.optimizer = build_optimizer(self.parts)
        return self.optimizer

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
        """Rows of like length together, where the recipe says so."""
        if self.buckets is None:
            return super()._get_train_sampler(*args, **kwargs)
        return BucketSampler(self.buckets, self.args.seed)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        with self.meter.moment("evaluate"):
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
        self.state.best_model_checkpoint = str(best) if best.is_dir() else None
        return super()._finalize_training(*args, **kwargs)

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        with self.meter.moment("save"):
            super()._save_checkpoint(model, trial)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """A checkpoint holds only what the base model has not; the final model is whole."""
        if self.parts.base_stays and output_dir not in (None, self.args.output_dir):
            state_dict = self.parts.trained_weights
        super()._save(output_dir, state_dict=state_dict)

    def _load_best_model(self) -> None:
        """Weights of the best epoch, tensor by tensor: never a second set of them in memory."""
        if self.state.best_global_step == self.state.global_step:
            return  # the best weights are the ones at hand
        with self.meter.moment("load-best"):
            weights = Path(self.state.best_model_checkpoint) / "model.safetensors"
            if not copy_weights(weights, self.model):
                super()._load_best_model()

    def _refuse_non_finite(self, what: str, value: float) -> None:
        if math.isfinite(value):
            return
        saved = newest_checkpoint(Path(self.args.output_dir))
        kept = f"{saved} holds the last good weights" if saved else "no checkpoint had been written yet"
        raise LossNotFinite(
            f"The {what} became {value} after {self.state.global_step} good steps, so the run stopped; {kept}. "
            f"Try --learning-rate {self.args.learning_rate / 4:g}, or leave out mixed-precision if it is in use."
        )


class _StepMoment(TrainerCallback):
    """Tells the meter when the optimizer works."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.meter.begin(BETWEEN)

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self.meter.begin("step")

    def on_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self.meter.begin(BETWEEN)


class StepClock(TrainerCallback):
    """The time of every step, without evaluation and saving, and of every epoch with all that belongs to it."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.epochs: list[float] = []
        self._start = 0.0
        self._epoch = time.perf_counter()

    @property
    def median(self) -> float | None:
        """The usual step; the first one warms up and does not count where there are more."""
        steady = self.seconds[1:] or self.seconds
        return statistics.median(steady) if steady else None

    def begin(self) -> None:
        """The first epoch begins, with what has to be done before its first step."""
        self._epoch = time.perf_counter()

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self._start = time.perf_counter()

    def on_epoch_begin(self, *args: Any, **kwargs: Any) -> None:
        if self.seconds:
            self._end_epoch()

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        self._end_epoch()

    def _end_epoch(self) -> None:
        now = time.perf_counter()
        self.epochs.append(now - self._epoch)
        self._epoch = now

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.seconds.append(time.perf_counter() - self._start)


def training_arguments(job: Job, parts: Parts, folder: Path, report_to: list[str]) -> TrainingArguments:
    """The job in the words of transformers. The batch is the effective one; slices are the step's business."""
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=parts.batch_size,
        per_device_eval_batch_size=parts.evaluation_rows,
        num_train_epochs=job.epochs,
        max_steps=job.max_steps or -1,
        learning_rate=parts.learning_rate,
        weight_decay=parts.weight_decay,
        max_grad_norm=parts.max_grad_norm,
        bf16=parts.precision is Precision.BF16,
        fp16=parts.precision is Precision.FP16,
        use_cpu=parts.device.kind == "cpu",
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=SAVED_CHECKPOINTS,
        metric_for_best_model="f1",
        greater_is_better=True,
        load_best_model_at_end=True,
        logging_steps=LOG_EVERY,
        logging_first_step=True,
        logging_nan_inf_filter=False,
        seed=job.seed,
        label_names=["labels"],
        dataloader_pin_memory=parts.device.kind == "cuda",
        disable_tqdm=True,
        report_to=report_to or "none",
    )
    assert arguments.device.type == parts.device.kind
    arguments._n_gpu = 1  # with more cards transformers would multiply the batch and split the model's output
    return arguments


def copy_weights(file: Path, model: torch.nn.Module) -> bool:
    """Copy saved weights into a model one tensor at a time; False if the file is not of this model's shape."""
    if not file.is_file():
        return False
    own = model.state_dict()
    # Mapped into memory, the whole file would end up resident beside the weights.
    with safe_open(file, framework="pt", backend="pread") as saved, torch.no_grad():
        if not set(saved.keys()) <= set(own):
            return False
        for name in saved.keys():  # noqa: SIM118, it is not a dict
            own[name].copy_(saved.get_tensor(name))
    return True


def newest_checkpoint(folder: Path) -> Path | None:
    """The last checkpoint that was written to its end: the trainer's state comes last."""
    whole = [path.parent for path in folder.glob("checkpoint-*/trainer_state.json")]
    return max(whole, key=lambda path: int(path.name.partition("-")[2]), default=None)
