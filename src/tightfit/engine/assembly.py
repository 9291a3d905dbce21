"""Assembly: model, optimizer and step of a training run, by its recipe; used by simulation and training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tightfit.compat import decay_parameter_names, use_cuda_only_on_gpu
from tightfit.data.batching import Batching
from tightfit.device import Device
from tightfit.engine.arguments import optimizer_settings
from tightfit.engine.model_source import ModelSource
from tightfit.errors import ModelError
from tightfit.job import Job
from tightfit.messages import msg
from tightfit.models import Loading, max_positions
from tightfit.strategies.adamw import AdamW
from tightfit.strategies.parts import Parts
from tightfit.strategies.recipe import Recipe

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from tightfit.strategies.parts import OptimizerFactory


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """The settings of a training step that no recipe may change, or only lower."""

    batch_size: int
    max_length: int
    learning_rate: float
    weight_decay: float
    max_grad_norm: float
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the optimizer, as torch names them."""
    own_optimizer: OptimizerFactory | None = None
    """That of the user, where no strategy replaces it."""

    @classmethod
    def of(cls, job: Job) -> StepSettings:
        """Those of a job."""
        return cls(
            batch_size=job.batch_size,
            max_length=job.max_length,
            learning_rate=job.learning_rate,
            weight_decay=job.weight_decay,
            max_grad_norm=job.max_grad_norm,
            optimizer=optimizer_settings(job),
        )


def assemble(
    source: ModelSource, settings: StepSettings, recipe: Recipe, device: Device, *, layers: int | None = None
) -> Parts:
    """Build the model and apply the recipe's strategies; with `layers` the model has only that many layers.

    The new head gets random weights: seed the generators before, unless the tensors are fake.
    """
    strategies, loading = recipe.in_order_of_application, Loading()
    for strategy in strategies:
        loading = strategy.load(loading)
    model = source.build(loading, layers)
    _check_max_length(settings.max_length, model, source.name)
    parts = Parts(
        model=model,
        device=device,
        optimizer=settings.own_optimizer or AdamW().build,
        batching=Batching(settings.batch_size, settings.max_length, depth=source.depth),
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        optimizer_settings=settings.optimizer,
        peft_type=source.peft_type,
    )
    for strategy in strategies:
        parts = strategy.apply(parts)
    return parts


def build_optimizer(parts: Parts, given: torch.optim.Optimizer | None = None) -> torch.optim.Optimizer:
    """The given optimizer, or the recipe's, run inside the backward pass if the recipe says so."""
    optimizer = parts.new_optimizer(parameter_groups(parts)) if given is None else given
    use_cuda_only_on_gpu(optimizer)
    parts.stepping.prepare(optimizer, parts.max_grad_norm)
    return optimizer


def parameter_groups(parts: Parts) -> list[dict[str, Any]]:
    """The trainable parameters in two groups: no weight decay for biases and norms, as in transformers.Trainer."""
    decaying = _weight_decay_names(parts.model)
    trained = [(name, p) for name, p in parts.model.named_parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for name, p in trained if name in decaying], "weight_decay": parts.weight_decay},
        {"params": [p for name, p in trained if name not in decaying], "weight_decay": 0.0},
    ]
    return [{**group, **parts.optimizer_settings} for group in groups if group["params"]]


def _check_max_length(max_length: int, model: PreTrainedModel, name: str) -> None:
    limit = max_positions(model)
    if limit is not None and max_length > limit:
        raise ModelError(
            msg(
                "--max-length {length} is more than the {limit} positions of '{model}': use {limit} or less.",
                length=max_length,
                limit=limit,
                model=name,
            )
        )


def _weight_decay_names(model: PreTrainedModel) -> set[str]:
    return set(decay_parameter_names(model))  # Trainer's own rule
