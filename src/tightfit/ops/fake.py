"""Loops on fake tensors: only one iteration is simulated, and counted as often as the loop would run.

In a simulation tensors have shapes and no data. A loop over tiles runs only its first tile there, because the others
allocate the same memory again. This module records how often the loop would have run, and what kind of work an
operation stands for, so that op counts are those of real training.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


@dataclass
class TraceContext:
    """How a simulation counts the operations that run now."""

    times: float = 1.0
    kind: str | None = None
    """The op kind to count them as; None for the operation's own."""
    on_host: bool = False
    """Whether new tensors are in host memory, not on the GPU."""
    device_kind: str = "cpu"
    """The device that is simulated; fake tensors themselves report the CPU."""
    most: float = math.inf
    """The largest share of its traced size that a tensor may have in training: loops over chunks limit it."""
    row_lengths: Sequence[int] | None = None
    """Tokens of each row of the batch, which its attention mask would tell if it had data; None if unknown."""


class _Thread(threading.local):
    def __init__(self) -> None:
        self.context = TraceContext()


_this_thread = _Thread()


def context() -> TraceContext:
    """The context of the simulation in this thread."""
    return _this_thread.context


@contextlib.contextmanager
def new_context(device_kind: str) -> Iterator[None]:
    """Each simulation has its own: a loop of one that failed ends only when the garbage collector finds it."""
    before, _this_thread.context = _this_thread.context, TraceContext(device_kind=device_kind)
    try:
        yield
    finally:
        _this_thread.context = before


def is_fake(tensor: object) -> bool:
    """Whether a tensor has no data."""
    from tightfit.compat import FakeTensor  # late: the list of strategies imports this module

    return isinstance(tensor, FakeTensor)


def device_kind(tensor: torch.Tensor) -> str:
    """The kind of device that a tensor is on: cpu, cuda or mps; in a simulation, that of the simulated device."""
    if not is_fake(tensor):
        return tensor.device.type
    return "cpu" if context().on_host else context().device_kind


@contextlib.contextmanager
def counts_as(times: float = 1.0, kind: str | None = None) -> Iterator[None]:
    """Multiply the counts of the operations in this context by `times`, or count them as another kind of work."""
    now = context()
    before = now.times, now.kind
    now.times, now.kind = now.times * times, kind or now.kind
    try:
        yield
    finally:
        now.times, now.kind = before


@contextlib.contextmanager
def on_host() -> Iterator[None]:
    """Count tensors created inside as host memory, not as GPU memory."""
    now = context()
    before, now.on_host = now.on_host, True
    try:
        yield
    finally:
        now.on_host = before


@contextlib.contextmanager
def row_lengths(lengths: Sequence[int] | None) -> Iterator[None]:
    """Inside, the rows of fake batches have these lengths."""
    now = context()
    before, now.row_lengths = now.row_lengths, lengths
    try:
        yield
    finally:
        now.row_lengths = before


@contextlib.contextmanager
def chunk_of(size: int, chunk: int) -> Iterator[None]:
    """Inside, tensors of `size` elements stand for those of a chunk of `chunk`, whatever the size in training."""
    now = context()
    before, now.most = now.most, chunk / size
    try:
        yield
    finally:
        now.most = before


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
