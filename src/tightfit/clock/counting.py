"""Counting: how many operations something takes, views left out."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from tightfit.rehearsal.work import NOTHING, sort_of


class Counting(TorchDispatchMode):
    """Counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += sort_of(func) is not NOTHING
        return func(*args, **(kwargs or {}))
