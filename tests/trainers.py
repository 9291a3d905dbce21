"""A trainer of a tiny model over two batches, in memory."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from heads import make_batch
from parts import LENGTH, ROWS, parts_of

from model_inputs import inputs_with
from tightfit import Job
from tightfit.engine.meter import meter_for
from tightfit.tasks.text_classification import TextClassification
from tightfit.training.setup import training_arguments
from tightfit.training.trainer import Trainer

STEPS_PER_EPOCH = 2


class Rows(list[dict[str, torch.Tensor]]):
    """A dataset in memory."""

    def __getitems__(self, rows: list[int]) -> list[dict[str, torch.Tensor]]:
        return [self[row] for row in rows]


def rows_of(batch: dict[str, torch.Tensor]) -> Rows:
    return Rows({key: value[row] for key, value in batch.items()} for row in range(len(batch["labels"])))


def make_trainer(
    folder: Path,
    *specs: str,
    max_steps: int = STEPS_PER_EPOCH,
    cls: type[Trainer] = Trainer,
    settings: dict[str, Any] | None = None,
    model: Any = None,
    head: str = "sequence",
    **kwargs: Any,
) -> Any:
    """A trainer with a checkpoint folder of its own; `settings` are TrainingArguments."""
    torch.manual_seed(0)
    parts, job = parts_of(*specs, model=model), Job(model="m", data="d", max_steps=max_steps)
    args = training_arguments(job, parts, folder, [])
    for name, value in (settings or {}).items():
        setattr(args, name, value)
    batches = [make_batch(ROWS, head, longest=LENGTH, seed=seed) for seed in (1, 2)]
    defaults: dict[str, Any] = {
        "train_dataset": Rows(row for batch in batches for row in rows_of(batch)),
        "eval_dataset": rows_of(make_batch(ROWS, head, longest=LENGTH, seed=3)),
        "compute_metrics": partial(TextClassification().compute_metrics, inputs=inputs_with()),
    }
    return cls(parts=parts, meter=meter_for(parts.device), args=args, **{**defaults, **kwargs})


def scripted(metric: str, values: Iterable[float]) -> Any:
    """A `compute_metrics` that returns these values, one per evaluation."""
    script = iter(values)
    return lambda prediction: {metric: next(script)}


def weights_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in trainer.model.state_dict().items()}
