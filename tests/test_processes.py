"""Forked processes: results, exceptions and interruption."""

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

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other platforms do not fork")


def test_results_and_exceptions_are_passed_to_the_parent() -> None:
    assert run_in_fork(lambda name: f"result for {name}", "me") == "result for me"

    def fail(_: object) -> None:
        raise KeyError("a mistake")

    with pytest.raises(KeyError, match="a mistake"):
        run_in_fork(fail, None)
    with pytest.raises(RunFailed, match="was killed"):
        run_in_fork(lambda _: os._exit(9), None)


def test_no_fork_once_cuda_is_initialized(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    assert run_in_fork(os.getpid) != os.getpid()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert run_in_fork(os.getpid) == os.getpid()


@pytest.fixture
def default_sigint() -> Iterator[None]:
    """Background jobs of a shell ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("default_sigint")
def test_ctrl_c_stops_the_forked_process() -> None:
    def interrupt_parent_and_sleep(_: object) -> None:
        time.sleep(1)  # until the parent waits: within a finalizer Python drops what a signal handler raises
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(60)

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_in_fork(interrupt_parent_and_sleep, None)
    assert time.monotonic() - start < 30
    assert not multiprocessing.active_children()


SCRIPT = """
import torch
from tightfit.processes import run_in_fork

torch.set_num_threads(2)
values = torch.rand(512, 768)

def compute() -> float:
    return float((values @ values.T).softmax(-1).sum())

compute()
print(run_in_fork(compute))
"""


def test_torch_in_a_fork_does_not_wait_for_the_parents_threads() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120)
    assert float(done.stdout) == pytest.approx(512)
