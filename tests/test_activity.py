"""Activities are timed, each without those inside it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tightfit import activity as module
from tightfit.activity import LOADING, PLANNING, READING, STARTING, Activities, activity, is_shown
from tightfit.messages import Message
from tightfit.system.processes import run_in_fork


class Screen:
    quiet = False

    def __init__(self) -> None:
        self.shown: list[Message] = []

    @contextlib.contextmanager
    def show(self, what: Message, *, own_output: bool = False) -> Iterator[None]:
        self.shown.append(what)
        yield


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    now = SimpleNamespace(seconds=50.0)
    monkeypatch.setattr(module.time, "perf_counter", lambda: now.seconds)
    return now


def test_the_seconds_of_all_activities_add_up_to_the_total(clock: SimpleNamespace) -> None:
    screen = Screen()
    with Activities(screen, started=47.0).followed() as activities:
        with activity(PLANNING):
            clock.seconds += 1
            with activity(READING):
                clock.seconds += 10
            clock.seconds += 1
        with activities.timed(LOADING):
            clock.seconds += 100
        clock.seconds += 1
    assert activities.total() == 116
    assert activities.seconds == {STARTING: 4.0, PLANNING: 2.0, READING: 10.0, LOADING: 100.0}
    assert screen.shown == [PLANNING, READING]


def test_a_repeated_activity_is_shown_once() -> None:
    screen = Screen()
    with Activities(screen).followed(), activity(READING), activity(READING):
        pass
    assert screen.shown == [READING]


def test_nothing_is_shown_where_nobody_follows() -> None:
    with activity(READING):
        assert not is_shown()


def test_a_forked_process_shows_nothing() -> None:
    screen = Screen()

    def work() -> int:
        with activity(READING):
            return len(screen.shown)

    with Activities(screen).followed(), activity(PLANNING):
        assert is_shown()
        assert run_in_fork(work) == 1
