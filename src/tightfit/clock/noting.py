"""Noting: the work of something that really runs, told as a rehearsal tells it."""

from __future__ import annotations

from typing import Any

from tightfit.compat import TorchDispatchMode
from tightfit.rehearsal.work import Table, Work

_ALL = 0


class Noting(TorchDispatchMode):
    """Notes every operation, views left out."""

    def __init__(self) -> None:
        super().__init__()
        self.work = Work()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.work.note(func, args, kwargs or {}, out, _ALL)
        return out

    @property
    def table(self) -> Table:
        """All that was noted."""
        return self.work.in_section(_ALL)
