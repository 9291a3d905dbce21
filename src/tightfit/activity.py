"""Activities: what a command is doing, such as reading or planning; shown while it lasts, and timed."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Protocol

from tightfit.messages import Message, msg

STARTING = msg("starting")
READING = msg("reading the data")
MEASURING = msg("measuring the speed of this machine")
PLANNING = msg("planning")
SIMULATING = msg("simulating")
LOADING = msg("loading the model")
ENCODING = msg("running the frozen encoder once")
PREFLIGHT = msg("pre-flight")
TRAINING = msg("training")
EVALUATING = msg("evaluating")
PREDICTING = msg("predicting")
SAVING = msg("saving")


class Screen(Protocol):
    """Where activities are shown, usually the terminal."""

    quiet: bool

    def show(self, what: Message, *, own_output: bool = False) -> AbstractContextManager[None]:
        """Show what is under way until it ends; with `own_output`, it writes to the terminal itself."""


class Activities:
    """The activities of a command or a run, on a screen, and the seconds of each."""

    def __init__(self, screen: Screen, started: float | None = None) -> None:
        self.screen = screen
        self.seconds: dict[Message, float] = {}
        """Of each activity, without those inside it."""
        self._since = time.perf_counter() if started is None else started
        self._current = STARTING
        self._process = os.getpid()

    @contextlib.contextmanager
    def followed(self) -> Iterator[Activities]:
        """Inside, every `activity` is shown and timed."""
        token = _followed.set(self)
        try:
            yield self
        finally:
            _followed.reset(token)

    @contextlib.contextmanager
    def during(self, what: Message, *, own_output: bool = False) -> Iterator[None]:
        """Show and time what happens inside."""
        repeated = what == self._current
        with self.timed(what), contextlib.nullcontext() if repeated else self.screen.show(what, own_output=own_output):
            yield

    @contextlib.contextmanager
    def timed(self, what: Message) -> Iterator[None]:
        """Only time what happens inside, which shows itself."""
        outer = self._switch(what)
        try:
            yield
        finally:
            self._switch(outer)

    def total(self) -> float:
        """Seconds since the start."""
        self._switch(self._current)
        return sum(self.seconds.values())

    def _switch(self, what: Message) -> Message:
        now, outer = time.perf_counter(), self._current
        self.seconds[outer] = self.seconds.get(outer, 0.0) + now - self._since
        self._since, self._current = now, what
        return outer

    @property
    def is_here(self) -> bool:
        """Whether this is the process that shows them, and not one forked from it."""
        return self._process == os.getpid()


_followed: ContextVar[Activities | None] = ContextVar("followed", default=None)
"""The activities of the command or the run in this thread."""


def activity(what: Message, *, own_output: bool = False) -> AbstractContextManager[None]:
    """Show and time what happens inside, if a command or a run follows it."""
    found = _followed.get()
    if found is None or not found.is_here:
        return contextlib.nullcontext()
    return found.during(what, own_output=own_output)


def is_shown() -> bool:
    """Whether somebody sees what is under way."""
    found = _followed.get()
    return found is not None and found.is_here and not found.screen.quiet
