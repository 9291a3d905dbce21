"""Features: every row goes through the frozen trunk once, before the training; then rows are what was kept of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tightfit.data.kept import KeptRows, as_it_is
from tightfit.data.order import rows_met
from tightfit.data.tokens import Tokens
from tightfit.preparation import Prepared, buckets_of
from tightfit.strategy import Parts

if TYPE_CHECKING:
    from tightfit.trainer import Trainer

Tell = Callable[[int, int], None]
"""Hears how many rows of how many are done."""


def keep_features(trainer: Trainer, prepared: Prepared, tell: Tell) -> None:
    """Let a trainer train on features. Rows that it will not meet are left out."""
    train, validation = prepared.train, prepared.validation
    met = rows_met(prepared.job, len(train), buckets_of(prepared.parts, train)).tolist()
    total = len(met) + len(validation)
    with trainer.meter.moment("features"):
        kept = [
            _kept(trainer, train, met, lambda done: tell(done, total)),
            _kept(trainer, validation, range(len(validation)), lambda done: tell(len(met) + done, total)),
        ]
    trainer.train_dataset, trainer.eval_dataset = kept
    trainer.data_collator, trainer.args.remove_unused_columns = as_it_is, False


def kept_bytes(parts: Parts, rows: int) -> int:
    """What the files of the features take."""
    if parts.trunk is None:
        return 0
    return sum(value.nbytes for value in parts.trunk.blank(1).values()) * rows


def _kept(trainer: Trainer, tokens: Tokens, rows: Sequence[int], tell: Callable[[int], None]) -> KeptRows:
    """Longest first: little is padded, and what is too large shows at once."""
    trunk, at_once = trainer.parts.trunk, trainer.parts.trunk_rows
    assert trunk is not None
    kept = KeptRows(len(tokens), Path(trainer.args.output_dir))
    texts, order = trainer._remove_unused_columns(tokens.dataset), sorted(rows, key=lambda row: -tokens.lengths[row])
    for start in range(0, len(order), at_once):
        chosen = order[start : start + at_once]
        batch = trainer._prepare_inputs(trainer.data_collator([texts[row] for row in chosen]))
        with trainer.accelerator.autocast():
            features, answer = trunk.features(batch)
            trunk.refuse_other_answer(features, answer)
        kept.write(chosen, features)
        tell(start + len(chosen))
    return kept
