"""Loops on fake tensors: only one iteration is simulated, and counted as often as the loop would run.

In a simulation tensors have shapes and no data. A loop over tiles runs only its first tile there, because the others
allocate the same memory again. This module records how often the loop would have run, and what kind of work an
operation stands for, so that op counts are those of real training.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TypeVar

T = TypeVar("T")


class TraceContext(threading.local):
    """How the operations that run now in this thread are counted."""

    times: float = 1.0
    kind: str | None = None
    """The op kind to count them as; None for the operation's own."""
    on_host: bool = False
    """Whether new tensors are in host memory, not on the GPU."""


context = TraceContext()


def is_fake(tensor: object) -> bool:
    """Whether a tensor has no data."""
    from tightfit.compat import FakeTensor  # late: the list of strategies imports this module

    return isinstance(tensor, FakeTensor)


@contextlib.contextmanager
def counts_as(times: float = 1.0, kind: str | None = None) -> Iterator[None]:
    """Count the operations inside `times` times, or as work of another kind."""
    before = context.times, context.kind
    context.times, context.kind = context.times * times, kind or context.kind
    try:
        yield
    finally:
        context.times, context.kind = before


@contextlib.contextmanager
def on_host() -> Iterator[None]:
    """Count tensors created inside as host memory, not as GPU memory."""
    before, context.on_host = context.on_host, True
    try:
        yield
    finally:
        context.on_host = before


def representative(tiles: Iterable[T], times: float, like: object) -> Iterator[T]:
    """All tiles; on fake tensors only the first one, counted `times` times."""
    if not is_fake(like):
        yield from tiles
        return
    with counts_as(times):
        yield next(iter(tiles))


def real_tensors() -> AbstractContextManager[object]:
    """Create tensors with data inside, also in a simulation, which does not trace them."""
    from tightfit.compat import disable_current_modes

    return disable_current_modes()
