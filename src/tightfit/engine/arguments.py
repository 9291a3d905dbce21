"""Arguments: the fields of transformers.TrainingArguments that `--set` may give, and why others cannot be set.

A field is what a strategy decides (memory), what another option decides, what tightfit has to decide itself, or free.
The free ones mean what they mean in transformers.Trainer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from tightfit.errors import BadInput, first_line, suggest
from tightfit.job import Job
from tightfit.messages import Message, msg
from tightfit.tasks import check_task
from tightfit.tasks.classes import check_class_weights

STRATEGY_OF = {
    "gradient_accumulation_steps": "micro-batch:size=8",
    "per_device_eval_batch_size": "micro-batch:size=8",
    "eval_accumulation_steps": "micro-batch:size=8",
    "auto_find_batch_size": "micro-batch:size=8",
    "gradient_checkpointing": "gradient-checkpointing",
    "gradient_checkpointing_kwargs": "gradient-checkpointing",
    "bf16": "mixed-precision:dtype=bf16",
    "fp16": "mixed-precision:dtype=fp16",
    "bf16_full_eval": "mixed-precision:dtype=bf16",
    "fp16_full_eval": "mixed-precision:dtype=fp16",
    "optim": "adamw",
    "optim_args": "adamw",
    "optim_target_modules": "adamw",
    "train_sampling_strategy": "length-bucketing",
    "length_column_name": "length-bucketing",
}
"""Fields that decide about memory, and the strategy that does so here."""
OPTION_OF = {
    "output_dir": "--out",
    "per_device_train_batch_size": "--batch-size",
    "num_train_epochs": "--epochs",
    "max_steps": "--max-steps",
    "learning_rate": "--learning-rate",
    "lr_scheduler_type": "--lr-scheduler-type",
    "warmup_steps": "--warmup-steps",
    "weight_decay": "--weight-decay",
    "max_grad_norm": "--max-grad-norm",
    "label_smoothing_factor": "--label-smoothing-factor",
    "report_to": "--report-to",
    "eval_strategy": "--eval-steps",
    "eval_steps": "--eval-steps",
    "save_strategy": "--save-steps",
    "save_steps": "--save-steps",
    "save_total_limit": "--keep-checkpoints",
    "metric_for_best_model": "--metric",
    "greater_is_better": "--metric",
    "seed": "--seed",
    "data_seed": "--seed",
    "use_cpu": "--device",
    "resume_from_checkpoint": "--resume",
}
"""Fields that have an option of their own."""
FREE = {
    *("adam_beta1", "adam_beta2", "adam_epsilon", "lr_scheduler_kwargs", "tf32", "eval_delay", "eval_on_start"),
    *("logging_strategy", "logging_steps", "logging_first_step", "include_num_input_tokens_seen", "log_level"),
    *("run_name", "project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"),
    *("push_to_hub", "hub_token", "hub_private_repo", "hub_model_id", "hub_strategy", "hub_always_push"),
    *("hub_revision",),
}
"""Fields that `--set` may give. All others are tightfit's own: how batches are made, what checkpoints hold, devices."""
_ADAM = {"betas": ("adam_beta1", "adam_beta2"), "eps": ("adam_epsilon",)}
_EXAMPLE_STEPS = 1000  # to try a schedule


def check_job(job: Job) -> None:
    """BadInput if the task lacks something that the job names, or if its schedule or `set` cannot be used."""
    task = check_task(job)
    task.check_loss(job)
    if job.class_weights is not None:
        check_class_weights(job.class_weights)
    if job.warmup_steps is not None and job.warmup_ratio:
        raise BadInput(
            msg(
                "--warmup-steps {steps} and --warmup-ratio {ratio:g} both say how long the warm-up is: leave one out.",
                steps=job.warmup_steps,
                ratio=job.warmup_ratio,
            )
        )
    given = given_arguments(job.set)
    if job.lr_scheduler_type != "linear" or "lr_scheduler_kwargs" in given:  # these take the import of transformers
        _check_schedule(job, given)


def given_arguments(pairs: Sequence[str]) -> dict[str, Any]:
    """The values of `key=value` pairs, as TrainingArguments takes them; BadInput if one cannot be set."""
    return dict(_argument(pair) for pair in pairs)


def _argument(pair: str) -> tuple[str, Any]:
    written, equals, value = (part.strip() for part in pair.partition("="))
    key = written.replace("-", "_")
    if not equals or not value:
        raise BadInput(msg("--set {pair} has no value: write --set {key}=VALUE.", pair=pair, key=key))
    if why := _why_not(key):
        raise BadInput(msg("--set {key} cannot be used: {why}", key=written, why=why))
    return key, _parse(key, value)


def _why_not(key: str) -> Message | None:
    """Why a field cannot be set; None if it can be."""
    if spec := STRATEGY_OF.get(key):
        return msg("it decides about memory, which the strategies do. Use --use {spec} or another strategy.", spec=spec)
    if option := OPTION_OF.get(key):
        return msg("it has an option of its own, {option}.", option=option)
    if key in FREE:
        return None
    if key in _names():
        return msg("tightfit decides it itself, so that predictions hold and runs can be resumed.")
    near = suggest(key, sorted(FREE))
    return msg("TrainingArguments has no such field; {suggestion}", suggestion=near)


def _names() -> set[str]:
    from transformers import TrainingArguments

    return {field.name for field in fields(TrainingArguments)}


def _parse(key: str, value: str) -> Any:
    """The value in the field's type, by the parser of transformers' scripts; what looks like JSON is read as that."""
    from transformers import HfArgumentParser, TrainingArguments

    class Parser(HfArgumentParser):
        def error(self, message: str) -> Any:
            raise ValueError(message)

    try:
        if value.startswith("{"):
            return json.loads(value)
        return getattr(Parser(TrainingArguments).parse_args([f"--{key}", value]), key)
    except ValueError as error:
        reason = first_line(error).partition(": ")[2] or first_line(error)
        raise BadInput(
            msg("--set {key}={value} is not valid: {reason}.", key=key, value=value, reason=reason)
        ) from None


def optimizer_settings(job: Job) -> dict[str, Any]:
    """The settings of AdamW that the job gives, as torch names them; empty for its defaults."""
    given = given_arguments(job.set)
    if not any(name in given for names in _ADAM.values() for name in names):
        return {}
    beta1, beta2 = given.get("adam_beta1", 0.9), given.get("adam_beta2", 0.999)
    return {"betas": (beta1, beta2), "eps": given.get("adam_epsilon", 1e-8)}


def warmup(job: Job) -> float:
    """The warm-up as transformers takes it: a number of steps, or less than 1 for a share of them."""
    return job.warmup_ratio if job.warmup_steps is None else job.warmup_steps


def _check_schedule(job: Job, given: Mapping[str, Any]) -> None:
    """Make the schedule once: which types there are and which settings each needs is known by transformers."""
    import torch
    from transformers import SchedulerType, get_scheduler

    types = [each.value for each in SchedulerType]
    if job.lr_scheduler_type not in types:
        hint = suggest(job.lr_scheduler_type, types)
        raise BadInput(
            msg("There is no --lr-scheduler-type {given}: {suggestion}", given=job.lr_scheduler_type, suggestion=hint)
        )
    parameter = torch.nn.Parameter(torch.zeros(1))
    try:
        get_scheduler(
            job.lr_scheduler_type,
            torch.optim.SGD([parameter], lr=job.learning_rate),
            num_warmup_steps=int(warmup(job)),
            num_training_steps=job.max_steps or _EXAMPLE_STEPS,
            scheduler_specific_kwargs=given.get("lr_scheduler_kwargs"),
        )
    except (TypeError, ValueError) as error:
        raise BadInput(
            msg(
                "--lr-scheduler-type {given} cannot be used: {reason}. "
                "Its settings are given as --set lr_scheduler_kwargs='{example}'.",
                given=job.lr_scheduler_type,
                reason=first_line(error).rstrip("."),
                example='{"num_cycles": 2}',
            )
        ) from None
