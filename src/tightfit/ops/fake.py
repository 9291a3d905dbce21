"""Shapes: tensors without data, as in a rehearsal, and how a little work on them stands for a lot.

Loops over pieces need only their first there: the others take the same room again. How often they would have gone
round, and what they would really have done, is said here for those who count the work.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass
class TraceContext:
    """What the operations at hand stand for."""

    times: float = 1.0
    sort: str | None = None
    """The sort of work it really is; None if it is what it looks like."""
    on_host: bool = False
    """Whether what is made is in the memory of the machine around a card."""


now = TraceContext()


def is_fake(tensor: object) -> bool:
    """A tensor without data."""
    from tightfit.compat import FakeTensor  # late: the list of strategies imports this module

    return isinstance(tensor, FakeTensor)


@contextlib.contextmanager
def counts_as(times: float = 1.0, sort: str | None = None) -> Iterator[None]:
    """What is done inside is done so often, or is work of another sort."""
    before = now.times, now.sort
    now.times, now.sort = now.times * times, sort or now.sort
    try:
        yield
    finally:
        now.times, now.sort = before


@contextlib.contextmanager
def on_host() -> Iterator[None]:
    """What is made inside takes no memory of the card."""
    before, now.on_host = now.on_host, True
    try:
        yield
    finally:
        now.on_host = before


def each(chunks: Iterable[T], times: float, like: object) -> Iterator[T]:
    """All pieces; of shapes only the first, which stands for as many as there are."""
    if not is_fake(like):
        yield from chunks
        return
    with counts_as(times):
        yield next(iter(chunks))


def real_tensors() -> AbstractContextManager[object]:
    """Tensors made inside hold data also in a rehearsal, which does not see them."""
    from tightfit.compat import disable_current_modes

    return disable_current_modes()
