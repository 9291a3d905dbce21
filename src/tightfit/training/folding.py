"""Folding: settings of TrainingArguments that are memory decisions become constraints of the plan.

What the user has set to something other than its default stays: it is pinned, or what would replace it is avoided. The
batch of an optimizer step, per_device_train_batch_size x gradient_accumulation_steps, stays as it is; the plan decides
how it is split.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tightfit.errors import BadInput
from tightfit.messages import Message, msg
from tightfit.strategies import STRATEGIES
from tightfit.strategies.base import OPTIMIZER
from tightfit.strategies.gradient_checkpointing import GradientCheckpointing
from tightfit.strategies.length_bucketing import LengthBucketing
from tightfit.strategies.mixed_precision import MixedPrecision

if TYPE_CHECKING:
    from transformers import TrainingArguments

OPTIMIZERS = tuple(name for name, kind in STRATEGIES.items() if kind.exclusive == OPTIMIZER)
_OPTIMIZER_SETTINGS = ("optim", "optim_args", "optim_target_modules", "adam_beta1", "adam_beta2", "adam_epsilon")
_NOT_SIMULATED = ("deepspeed", "fsdp", "torch_compile", "use_liger_kernel", "parallelism_config")


@dataclass(frozen=True)
class Folded:
    """TrainingArguments whose batch is that of an optimizer step, and the constraints that follow from the user's."""

    args: TrainingArguments
    pinned: tuple[str, ...]
    """Specs of strategies that the user has chosen by a setting."""
    avoided: tuple[str, ...]
    """Strategies that would replace what the user has chosen."""
    notes: tuple[Message, ...]
    """What became of each setting."""


def fold(args: TrainingArguments) -> Folded:
    """Fold the settings; the given arguments are not changed. BadInput for what cannot be planned."""
    _check(args)
    folded = copy.copy(args)
    folded.per_device_train_batch_size = args.per_device_train_batch_size * args.gradient_accumulation_steps
    folded.gradient_accumulation_steps = 1
    folded.gradient_checkpointing = False
    folded.auto_find_batch_size = False
    pinned, avoided = tuple(_pinned(args)), tuple(_avoided(args))
    return Folded(folded, pinned, avoided, tuple(_notes(args, folded, pinned)))


def changed(args: TrainingArguments, *names: str) -> list[str]:
    """The settings among these that are not at their default."""
    defaults = {field.name: field.default for field in dataclasses.fields(args)}
    return [name for name in names if name in defaults and _is_set(getattr(args, name), defaults[name])]


def _is_set(value: Any, default: Any) -> bool:
    return value != default and bool(value or default)


def _check(args: TrainingArguments) -> None:
    if names := changed(args, *_NOT_SIMULATED):
        raise BadInput(
            msg("{settings} cannot be planned for: leave out budget, or that.", settings=", ".join(names)),
        )
    if args.world_size > 1 or args.n_gpu > 1:
        raise BadInput(
            msg(
                "A budget is for one process on one device, and there are {count}: start one, "
                "with CUDA_VISIBLE_DEVICES=0.",
                count=max(args.world_size, args.n_gpu),
            )
        )


def _pinned(args: TrainingArguments) -> Iterator[str]:
    if args.gradient_checkpointing:
        every = (args.gradient_checkpointing_kwargs or {}).get("every_n_layers", 1)
        yield GradientCheckpointing(every=every).spec
    if args.bf16 or args.fp16:
        yield MixedPrecision(dtype="bf16" if args.bf16 else "fp16").spec


def _avoided(args: TrainingArguments) -> Iterator[str]:
    if changed(args, *_OPTIMIZER_SETTINGS):
        yield from OPTIMIZERS
    if changed(args, "train_sampling_strategy"):
        yield LengthBucketing.name


def _notes(args: TrainingArguments, folded: TrainingArguments, pinned: tuple[str, ...]) -> Iterator[Message]:
    batch, steps = args.per_device_train_batch_size, args.gradient_accumulation_steps
    if steps > 1:
        yield msg(
            "gradient_accumulation_steps={steps}: the batch of an optimizer step stays {steps} x {batch} = {rows}; how "
            "it is split is planned",
            steps=steps,
            batch=batch,
            rows=folded.per_device_train_batch_size,
        )
    for spec in pinned:
        yield msg("{spec} stays, as you have set it", spec=spec)
    for name in changed(args, "optim", "train_sampling_strategy"):
        value = getattr(args, name)
        yield msg("{spec} stays, as you have set it", spec=f"{name}={getattr(value, 'value', value)}")
    if args.auto_find_batch_size:
        yield msg("auto_find_batch_size is off: the plan finds what fits, and the batch size does not change")
