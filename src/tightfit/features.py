"""Features: every row goes through the frozen trunk once, before the training; then rows are what was kept of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tightfit.checkpoints import what_fails_is_said
from tightfit.data.kept import KeptRows, as_it_is
from tightfit.data.limits import RowLimits
from tightfit.data.order import rows_met
from tightfit.data.tokens import Tokens
from tightfit.errors import OutOfMemory, PreflightFailed
from tightfit.preparation import Prepared, buckets_of
from tightfit.recovery import run_in_pieces
from tightfit.strategies.parts import Parts

if TYPE_CHECKING:
    from tightfit.data.slices import Batch
    from tightfit.trainer import Trainer

Tell = Callable[[int, int], None]
"""Hears how many rows of how many are done."""


def keep_features(trainer: Trainer, prepared: Prepared, tell: Tell) -> None:
    """Let a trainer train on features. Rows that it will not meet are left out."""
    train, validation = prepared.train, prepared.validation
    met = rows_met(prepared.job, len(train), buckets_of(prepared.parts, train)).tolist()
    total = len(met) + len(validation)
    try:
        with trainer.meter.moment("features"):
            kept = [
                _kept(trainer, train, met, lambda done: tell(done, total)),
                _kept(trainer, validation, range(len(validation)), lambda done: tell(len(met) + done, total)),
            ]
    except OutOfMemory as error:
        raise PreflightFailed(str(error)) from None
    trainer.train_dataset, trainer.eval_dataset = kept
    trainer.data_collator, trainer.args.remove_unused_columns = as_it_is, False


def kept_bytes(parts: Parts, rows: int) -> int:
    """What the files of the features take."""
    if parts.trunk is None:
        return 0
    return sum(value.nbytes for value in parts.trunk.blank(1).values()) * rows


def _kept(trainer: Trainer, tokens: Tokens, rows: Sequence[int], tell: Callable[[int], None]) -> KeptRows:
    """Longest first: little is padded, and what is too large shows at once."""
    at_once, folder = trainer.parts.trunk_rows, Path(trainer.args.output_dir)
    kept, limits = KeptRows(len(tokens), folder), RowLimits(at_once)
    order = sorted(rows, key=lambda row: -tokens.lengths[row])
    for start in range(0, len(order), at_once):
        chosen = order[start : start + at_once]
        batch = trainer.prepared(tokens.dataset, chosen)
        pieces = run_in_pieces(lambda piece: _features(trainer, piece), batch, limits, trainer.say)
        with what_fails_is_said(folder / "features"):
            kept.write(chosen, {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]})
        tell(start + len(chosen))
    return kept


def _features(trainer: Trainer, texts: Batch) -> Batch:
    trunk = trainer.parts.trunk
    assert trunk is not None
    with trainer.accelerator.autocast():
        features, answer = trunk.features(texts)
        trunk.refuse_other_answer(features, answer)
    return features
