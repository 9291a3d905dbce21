"""A machine without memory for micro-batches of more than some rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from tightfit.training import trainer


@dataclass
class SmallMachine:
    """Raises MemoryError for larger micro-batches, and records the shape of each one."""

    rows: int
    """The most rows that fit."""
    shapes: list[tuple[int, int]] = field(default_factory=list)
    """Rows and tokens of every micro-batch that was started."""

    @contextlib.contextmanager
    def limited(self) -> Iterator[SmallMachine]:
        """Limit the micro-batches of training runs in this block."""
        train_batch = trainer.train_batch

        def limited(model: Any, micro_batches: Any, *args: Any) -> Any:
            return train_batch(model, self._while_they_fit(micro_batches), *args)

        with mock.patch.object(trainer, "train_batch", limited):
            yield self

    def _while_they_fit(self, micro_batches: Any) -> Iterator[Any]:
        for weight, micro_batch in micro_batches:
            self.shapes.append(tuple(micro_batch["input_ids"].shape))
            if self.shapes[-1][0] > self.rows:
                raise MemoryError
            yield weight, micro_batch
