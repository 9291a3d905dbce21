"""The planning in a process of its own: what it answers, and how it is stopped."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tightfit.errors import RunFailed
from tightfit.processes import run_in_fork

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is the same process")


def test_an_answer_and_an_error_come_back() -> None:
    assert run_in_fork(lambda planner: f"answer to {planner}", "me") == "answer to me"

    def fail(planner: object) -> None:
        raise KeyError("a mistake")

    with pytest.raises(KeyError, match="a mistake"):
        run_in_fork(fail, None)
    with pytest.raises(RunFailed, match="ended from outside"):
        run_in_fork(lambda planner: os._exit(9), None)


def test_beside_a_card_in_use_nothing_is_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    assert run_in_fork(os.getpid) != os.getpid()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert run_in_fork(os.getpid) == os.getpid()


@pytest.fixture
def ctrl_c_counts() -> Iterator[None]:
    """Shells have what runs in the background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c_counts")
def test_ctrl_c_ends_it_at_once() -> None:
    def interrupt_and_plan_on(planner: object) -> None:
        time.sleep(1)  # until it is waited for: within a finalizer Python drops what a signal raises
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(60)

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_in_fork(interrupt_and_plan_on, None)
    assert time.monotonic() - start < 30
    assert not multiprocessing.active_children()


COMPUTING = """
import torch
from tightfit.processes import elsewhere

torch.set_num_threads(2)
numbers = torch.rand(512, 768)

def compute() -> float:
    return float((numbers @ numbers.T).softmax(-1).sum())

compute()
print(elsewhere(compute))
"""


def test_what_computes_there_does_not_wait_for_threads_that_stayed_here() -> None:
    done = subprocess.run([sys.executable, "-c", COMPUTING], capture_output=True, text=True, timeout=120)
    assert float(done.stdout) == pytest.approx(512)
