"""The Trainer's checkpoints: what it saves, how it resumes, and which checkpoint is the best."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerState
from transformers.trainer_callback import ExportableState

from tightfit.compat import reset_unscaled, set_last_lr
from tightfit.engine.oom import free_memory
from tightfit.engine.step import drop_state, save
from tightfit.messages import msg
from tightfit.optimizers.in_backward import reset_grad_norms
from tightfit.simulation.patches import replaced
from tightfit.system.files import atomic_remove
from tightfit.training.checkpoints import (
    as_load_error,
    find_corruption,
    load_weights_in_place,
    read_manifest,
    rotate_checkpoints,
    write_manifest,
    writing_checkpoint,
)
from tightfit.training.finite import SkippedSteps
from tightfit.training.recovering_trainer import RecoveringTrainer
from tightfit.training.recovery import Log
from tightfit.training.setup import checkpoint_bytes


class CheckpointTrainer(RecoveringTrainer):
    """transformers.Trainer with atomic, verified checkpoints, which are loaded one tensor at a time."""

    report: Log
    skipped: SkippedSteps
    _resumed: Path | None = None
    """The checkpoint that the run has resumed from."""

    # Saving

    def save_start(self) -> None:
        """Write checkpoint-0, to be restored until there is another; a resumed run has one already."""
        if self._resumed is None:
            self._save_checkpoint(self.model, None)

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        """Write everything needed to resume, atomically."""
        self.store_flos()
        if not self.args.should_save:
            return
        folder, step = Path(self.args.output_dir), self.state.global_step
        needed = checkpoint_bytes(self.parts, None if self.args.save_only_model else self.inner_optimizer)
        with self.meter.phase("save"), writing_checkpoint(folder, step, needed) as tmp:
            self._write_checkpoint(tmp)
        best = self._best_checkpoint()
        self.state.best_model_checkpoint = str(best) if best else None
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(folder / f"checkpoint-{step}"))
        rotate_checkpoints(folder, self.args.save_total_limit, best)

    def _write_checkpoint(self, folder: Path) -> None:
        save(self.parts, lambda weights: self._save(str(folder), dict(weights)), self.meter.phase)
        if not self.args.save_only_model:
            self._save_optimizer_and_scheduler(str(folder))
            self._save_scaler(str(folder))
            self._save_rng_state(str(folder))
        self.state.stateful_callbacks = self._callback_states()
        self.state.save_to_json(str(folder / "trainer_state.json"))
        write_manifest(folder, {"row_limits": self.recovery.found_limits(), "totals": self._totals()})

    def _callback_states(self) -> Any:
        """The state of callbacks that have one, such as the patience of early stopping."""
        callbacks = [*self.callback_handler.callbacks, self.control]
        stateful: Any = [callback for callback in callbacks if isinstance(callback, ExportableState)]
        return TrainerState(stateful_callbacks=stateful).stateful_callbacks

    def _totals(self) -> dict[str, float]:
        """What transformers counts or adds up and does not save: loss sums, and the steps that fp16 skipped."""
        since_log = {"loss_since_log": float(self._tr_loss), "logged_at": self._globalstep_last_logged}
        return {**since_log, "loss_total": self._total_loss_scalar, "skipped_steps": self.skipped.count}

    # Loading

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: torch.nn.Module | None = None) -> None:
        """Load the weights tensor by tensor, and the row limits found so far."""
        self._resumed = Path(resume_from_checkpoint)
        with as_load_error(self._resumed):
            TrainerState.load_from_json(str(self._resumed / "trainer_state.json"))
            self.recovery.load_limits(read_manifest(self._resumed)["row_limits"])
            self._load_weights(self._resumed)

    def _load_weights(self, checkpoint: Path) -> None:
        """Load the weights in a checkpoint; a frozen base model is not in it and is loaded already."""
        if not load_weights_in_place(checkpoint / "model.safetensors", self.model, self.meter.phase):
            with self.meter.phase("load-best"):
                super()._load_from_checkpoint(str(checkpoint), self.model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with as_load_error(checkpoint):
            super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            self._apply_schedule()

    def _apply_schedule(self) -> None:
        """Set the learning rate that the schedule has at this step: the loaded one is of the old number of steps."""
        schedule = getattr(self.lr_scheduler, "scheduler", self.lr_scheduler)  # without accelerate's wrapper
        if not isinstance(schedule, LambdaLR):
            return
        factors = [factor(schedule.last_epoch) for factor in schedule.lr_lambdas]
        rates = [base * factor for base, factor in zip(schedule.base_lrs, factors, strict=True)]
        for group, rate in zip(self.inner_optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        set_last_lr(schedule, rates)

    def _load_scaler(self, checkpoint: str | None) -> None:
        with as_load_error(checkpoint):
            super()._load_scaler(checkpoint)

    def _save_rng_state(self, output_dir: str) -> None:
        with self._no_gpu_on_cpu():
            super()._save_rng_state(output_dir)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with as_load_error(checkpoint), self._no_gpu_on_cpu():
            super()._load_rng_state(checkpoint)

    def _no_gpu_on_cpu(self) -> contextlib.AbstractContextManager[None]:
        """A run on the CPU draws no random numbers on a GPU, and reading their state would initialize CUDA."""
        is_on_cpu = self.args.device.type == "cpu"
        return replaced(torch.cuda, "is_available", lambda: False) if is_on_cpu else contextlib.nullcontext()

    def load_totals(self) -> None:
        """Continue the totals of the checkpoint that the run has resumed from."""
        if self._resumed is None:
            return
        totals = read_manifest(self._resumed)["totals"]
        self._tr_loss += totals["loss_since_log"]
        self._globalstep_last_logged, self._total_loss_scalar = totals["logged_at"], totals["loss_total"]
        self.skipped.count = totals["skipped_steps"]
        self._initial_global_step = 0

    def restore(self) -> None:
        """Load weights and optimizer state of the checkpoint that the run resumes from or started with."""
        self.drop_state()
        self._load_weights(self._resumed or Path(self.args.output_dir) / "checkpoint-0")
        if self._resumed is not None:
            self._load_optimizer_and_scheduler(str(self._resumed))
        self.model.train()

    def drop_state(self) -> None:
        """Free gradients and optimizer state: a checkpoint has its own, and memory may not suffice for both."""
        drop_state(self.model, self.inner_optimizer)
        if self.optimizer is not None:
            reset_grad_norms(self.inner_optimizer)
        if self.accelerator.scaler is not None:  # otherwise it would treat the next gradients as unscaled already
            reset_unscaled(self.accelerator.scaler)
        free_memory()

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        """transformers would take one more step when it resumes from a checkpoint of the last step it takes."""
        if self.state.global_step >= self.state.max_steps or self.control.should_training_stop:
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)

    # The best checkpoint

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Among evaluations with an equal metric the lowest loss wins: small validation sets have many ties."""
        if super()._determine_best_metric(metrics, trial):
            return True
        if self.args.metric_for_best_model is None or self.state.best_global_step is None:
            return False
        metric = f"eval_{self.args.metric_for_best_model.removeprefix('eval_')}"
        history = [entry for entry in self.state.log_history if "eval_loss" in entry]
        best = next((e["eval_loss"] for e in history if e["step"] == self.state.best_global_step), -math.inf)
        if metrics[metric] != self.state.best_metric or not metrics.get("eval_loss", math.inf) < best:
            return False
        self.state.best_global_step = self.state.global_step
        return True

    def _best_checkpoint(self) -> Path | None:
        """Found by its step, since the folder may have been moved since it was written."""
        best = Path(self.args.output_dir) / f"checkpoint-{self.state.best_global_step}"
        return best if best.is_dir() else None

    def _finalize_training(self, *args: Any, **kwargs: Any) -> Any:
        """Load the best checkpoint unless it is damaged; without a save strategy, remove checkpoint-0.

        The optimizer's state is in the last checkpoint, and not needed any more.
        """
        self.drop_state()
        best = self._best_checkpoint()
        in_memory = self.state.best_global_step == self.state.global_step
        damage = find_corruption(best) if best and not in_memory and self.args.load_best_model_at_end else None
        if best and damage is not None:
            self.report(
                msg(
                    "the best checkpoint was {checkpoint}, but {damage}: the weights of the last step are used instead",
                    checkpoint=best.name,
                    damage=damage,
                )
            )
            self.state.best_global_step, best = self.state.global_step, None
        self.state.best_model_checkpoint = str(best) if best else None
        start = Path(self.args.output_dir) / "checkpoint-0"
        if self.args.save_strategy == "no" and start.is_dir():
            atomic_remove(start)
        return super()._finalize_training(*args, **kwargs)

    def _load_best_model(self) -> None:
        """Load the weights of the best epoch tensor by tensor, without a second set of them in memory."""
        if self.state.best_global_step != self.state.global_step:  # else they are in memory
            self._load_weights(Path(self.state.best_model_checkpoint))
