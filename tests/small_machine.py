"""A machine that has no room for slices of more than some rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from tightfit.training import trainer


@dataclass
class SmallMachine:
    """Remembers what was tried."""

    rows: int
    """As many fit."""
    extents: list[tuple[int, int]] = field(default_factory=list)
    """Rows and tokens of every slice that was begun."""

    @contextlib.contextmanager
    def training_on(self) -> Iterator[SmallMachine]:
        run_micro_batches = trainer.run_micro_batches

        def limited(model: Any, slices: Any, *args: Any) -> Any:
            return run_micro_batches(model, self._as_far_as_they_fit(slices), *args)

        with mock.patch.object(trainer, "run_micro_batches", limited):
            yield self

    def _as_far_as_they_fit(self, slices: Any) -> Iterator[Any]:
        for share, chunk in slices:
            self.extents.append(tuple(chunk["input_ids"].shape))
            if self.extents[-1][0] > self.rows:
                raise MemoryError
            yield share, chunk
