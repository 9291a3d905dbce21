"""Builds model, optimizer, batches and step from a job and a recipe; used by simulation and training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tightfit.compat import decay_parameter_names
from tightfit.data.batching import Batching
from tightfit.data.labels import Labels
from tightfit.device import Device
from tightfit.errors import ModelError
from tightfit.job import Job
from tightfit.models import Loading, load_config, load_model, max_positions, truncate_layers
from tightfit.strategies.adamw import AdamW
from tightfit.strategies.parts import Parts
from tightfit.strategies.recipe import Recipe
from tightfit.tasks import find_task

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def assemble(
    job: Job,
    recipe: Recipe,
    device: Device,
    labels: Labels,
    tokenizer: PreTrainedTokenizerBase,
    *,
    layers: int | None = None,
) -> Parts:
    """Build the model and apply the recipe's strategies; with `layers` the model has only that many layers."""
    strategies, loading = recipe.in_order_of_application, Loading()
    for strategy in strategies:
        loading = strategy.load(loading)
    model = _build_model(job, labels, tokenizer, layers, loading)
    _check_max_length(job, model)
    parts = Parts(
        model=model,
        device=device,
        optimizer=AdamW().build,
        batching=Batching(job.batch_size, job.max_length),
        learning_rate=job.learning_rate,
        weight_decay=job.weight_decay,
        max_grad_norm=job.max_grad_norm,
    )
    for strategy in strategies:
        parts = strategy.apply(parts)
    return parts


def build_optimizer(parts: Parts) -> torch.optim.Optimizer:
    """The recipe's optimizer over the trainable parameters, run inside the backward pass if the recipe says so."""
    optimizer = parts.new_optimizer(parameter_groups(parts))
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
    return [group for group in groups if group["params"]]


def _build_model(
    job: Job, labels: Labels, tokenizer: PreTrainedTokenizerBase, layers: int | None, loading: Loading
) -> PreTrainedModel:
    from transformers import set_seed

    task = find_task(job.task)
    config = load_config(job.model, **task.config_changes(labels))
    config.get_text_config().pad_token_id = tokenizer.pad_token_id  # decoders find the last token of a row by it
    config.get_text_config().use_cache = False  # the key-value cache is for generation
    if layers is not None:
        truncate_layers(config, layers)
    set_seed(job.seed)  # the new head gets the same weights with every recipe
    return load_model(task.head(), job.model, config, random_weights=job.random_weights, loading=loading)


def _check_max_length(job: Job, model: PreTrainedModel) -> None:
    limit = max_positions(model)
    if limit is not None and job.max_length > limit:
        raise ModelError(
            f"--max-length {job.max_length} is more than the {limit} positions of '{job.model}': use {limit} or less."
        )


def _weight_decay_names(model: PreTrainedModel) -> set[str]:
    return set(decay_parameter_names(model))  # Trainer's own rule
