"""Cached features: the frozen encoder runs once over every row that the run uses, and training reads its outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tightfit.data.batches import rows_seen
from tightfit.data.micro_batches import RowLimits
from tightfit.data.row_file import FeatureFile, identity_collate
from tightfit.data.tokens import Tokens
from tightfit.engine.step import encode_batch
from tightfit.errors import OutOfMemory, PreflightFailed
from tightfit.training.checkpoints import as_save_failed
from tightfit.training.recovery import run_in_chunks
from tightfit.training.setup import TrainingSetup, buckets_of

if TYPE_CHECKING:
    from tightfit.data.batches import Batch
    from tightfit.training.trainer import Trainer

ProgressFn = Callable[[int, int], None]
"""Called with the rows done and the rows in total."""


def cache_features(trainer: Trainer, setup: TrainingSetup, on_progress: ProgressFn) -> None:
    """Run the frozen encoder once over every row that the run uses, and train on the cached features."""
    train, validation = setup.train, setup.validation
    used = rows_seen(setup.job, len(train), buckets_of(setup.parts, train)).tolist()
    total = len(used) + len(validation)
    try:
        with trainer.meter.phase("features"):
            train_features = _cached(trainer, train, used, lambda done: on_progress(done, total))
            validation_features = _cached(
                trainer, validation, range(len(validation)), lambda done: on_progress(len(used) + done, total)
            )
    except OutOfMemory as error:
        raise PreflightFailed(error.message) from None
    trainer.train_dataset, trainer.eval_dataset = train_features, validation_features
    trainer.data_collator, trainer.args.remove_unused_columns = identity_collate, False


def _cached(trainer: Trainer, tokens: Tokens, rows: Sequence[int], on_progress: Callable[[int], None]) -> FeatureFile:
    """The features of these rows, longest first: little padding, and out of memory shows in the first batch."""
    batch_rows, folder = trainer.parts.batching.no_grad_rows, Path(trainer.args.output_dir)
    file, limits = FeatureFile(len(tokens), folder), RowLimits(batch_rows)
    order = sorted(rows, key=lambda row: -tokens.lengths[row])
    for start in range(0, len(order), batch_rows):
        batch = order[start : start + batch_rows]
        inputs = trainer.prepare_rows(tokens.dataset, batch)
        chunks = run_in_chunks(lambda chunk: _features(trainer, chunk), inputs, limits, trainer.report)
        with as_save_failed(folder / "features"):
            file.write(batch, {name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]})
        on_progress(start + len(batch))
    return file


def _features(trainer: Trainer, batch: Batch) -> Batch:
    with trainer.accelerator.autocast():
        return encode_batch(trainer.parts, batch, trainer.meter.phase, check=True)
