"""Forked and fresh processes: results, exceptions and interruption; and what threads of one process share."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from operator import truediv
from pathlib import Path

import pytest

from tightfit.errors import BadInput, Interrupted, RunFailed
from tightfit.system.processes import ProcessLock, SharedSetting, Worker, WorkerTraceback, map_in_forks, run_in_fork
from worker_functions import fork_and_sleep, kill_this_process, print_and_exit, set_up

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
from tightfit.system.processes import run_in_fork

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


def test_an_error_that_cannot_be_pickled_is_passed_on_as_its_message() -> None:
    def fail() -> None:
        raise Interrupted("stopped after step 3", signal.SIGTERM)

    with pytest.raises(RunFailed, match="Interrupted: stopped after step 3"):
        run_in_fork(fail)


def test_two_threads_may_map_in_forks_at_once() -> None:
    def squares(offset: int) -> list[tuple[int, int]]:
        return list(map_in_forks(lambda item: (item + offset) ** 2, [1, 2, 3], 2))

    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(squares, [0, 10]))
    assert found == [[(1, 1), (2, 4), (3, 9)], [(1, 121), (2, 144), (3, 169)]]


# Workers


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker() as worker:
        yield worker


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """A zombie that nobody has waited for is not running, unless one of its threads has yet to end."""
    process = Path(f"/proc/{pid}")
    try:
        state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z" or len(list((process / "task").iterdir())) > 1
    except OSError:
        return False


def test_a_worker_calls_functions_in_one_process_of_its_own(worker: Worker) -> None:
    first = worker.call(os.getpid)
    assert first == worker.call(os.getpid) != os.getpid()
    assert worker.call(truediv, 6, 3) == 2
    with pytest.raises(ZeroDivisionError) as caught:
        worker.call(truediv, 1, 0)
    assert isinstance(caught.value.__cause__, WorkerTraceback)
    assert "truediv" not in str(caught.value)
    assert "Traceback" in str(caught.value.__cause__)
    assert worker.call(os.getpid) == first
    assert os.getpgid(first) == first  # Ctrl-C in a terminal does not reach it


def test_a_worker_finds_modules_where_this_process_does(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_module_for_workers.py").write_text("def double(x):\n    print('in', x)\n    return 2 * x\n")
    monkeypatch.syspath_prepend(tmp_path)
    from my_module_for_workers import double  # type: ignore[import-not-found]

    assert worker.call(double, 4) == 8  # what it prints is not taken for the result


def test_a_function_that_no_other_process_can_import_is_rejected(worker: Worker) -> None:
    with pytest.raises(BadInput, match="importable from a module"):
        worker.call(lambda: 1)
    script = """
from tightfit.system.processes import Worker

print("main is run")
def mine(): pass

try:
    Worker().call(mine)
except ValueError as error:
    print(type(error).__name__, "importable from a module" in str(error))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines() == ["main is run", "BadInput True"]


def test_a_worker_that_was_killed_is_started_again(worker: Worker) -> None:
    with pytest.raises(RunFailed, match="killed by signal 9"):
        worker.call(kill_this_process)
    first = worker.call(os.getpid)
    os.kill(first, signal.SIGKILL)  # between two calls
    wait_until(lambda: not is_running(first))
    assert worker.call(os.getpid) != first
    with pytest.raises(RunFailed, match="exit code 7: a message"):
        worker.call(print_and_exit)


def test_calls_run_one_at_a_time_in_order(worker: Worker) -> None:
    worker.call(os.getpid)
    futures = [worker.submit(time.sleep, 0.2), *(worker.submit(time.monotonic) for _ in range(3))]
    worker.cancel(futures[2])
    times = [futures[index].result() for index in (1, 3)]
    assert futures[0].done()
    assert times == sorted(times)
    assert futures[2].cancelled()


def test_calls_of_several_threads_get_their_own_results(worker: Worker) -> None:
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda x: worker.call(truediv, x, 2), range(8))) == [x / 2 for x in range(8)]


@pytest.mark.usefixtures("default_sigint")
def test_ctrl_c_ends_the_call_and_what_it_forked(worker: Worker, tmp_path: Path) -> None:
    seconds: list[float] = []

    def interrupt() -> None:
        wait_until(lambda: len(seconds) > 1 and (tmp_path / "pids").exists())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        worker.call(fork_and_sleep, tmp_path / "pids", on_tick=seconds.append)
    assert seconds == sorted(seconds)
    for pid in (tmp_path / "pids").read_text().split():
        wait_until(lambda pid=pid: not is_running(int(pid)))  # type: ignore[misc]
    assert worker.call(truediv, 4, 2) == 2


SLEEPING = """
import sys
from pathlib import Path
sys.path.append(sys.argv[2])
from worker_functions import fork_and_sleep
from tightfit.system.processes import Worker

Worker().submit(fork_and_sleep, Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.read(1)
"""


@pytest.mark.parametrize("number", [None, signal.SIGKILL], ids=["exit", "kill -9"])
def test_a_worker_ends_with_the_process_that_started_it(tmp_path: Path, number: int | None) -> None:
    command = [sys.executable, "-c", SLEEPING, str(tmp_path / "pids"), str(Path(__file__).parents[1])]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        wait_until((tmp_path / "pids").exists, 60)
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        assert all(map(is_running, pids))
        if number is not None:
            process.send_signal(number)
        process.communicate(b"x" if number is None else None)
    wait_until(lambda: not any(map(is_running, pids)))


def test_a_forked_process_has_a_worker_of_its_own(worker: Worker) -> None:
    ours = worker.call(os.getpid)
    theirs = run_in_fork(worker.call, os.getpid)
    assert theirs != ours
    assert worker.call(os.getpid) == ours


def test_the_setup_of_a_worker_is_called_first() -> None:
    with Worker(set_up) as worker:
        assert worker.call(os.getenv, "WORKER_WAS_SET_UP") == "1"


# What threads of one process share


def in_thread(function: Callable[[], bool]) -> bool:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()


def is_free(lock: ProcessLock) -> bool:
    with lock.held_if_free() as free:
        return free


def test_the_process_lock_is_not_free_for_anybody_while_it_is_held() -> None:
    lock = ProcessLock()
    assert is_free(lock)
    with lock.held(), lock.held():
        assert not is_free(lock)
        assert not in_thread(lambda: is_free(lock))
        assert run_in_fork(is_free, lock)  # whose threads do not run in the fork
    with lock.held_if_free() as free:
        assert free
        assert not is_free(lock)
        assert not in_thread(lambda: is_free(lock))
    assert is_free(lock)
    assert in_thread(lambda: is_free(lock))


def test_a_thread_waits_for_the_process_lock() -> None:
    lock, order = ProcessLock(), list[str]()

    def other() -> None:
        with lock.held():
            order.append("other")

    thread = threading.Thread(target=other)
    with lock.held():
        thread.start()
        time.sleep(0.1)
        order.append("this")
    thread.join()
    assert order == ["this", "other"]


def test_a_shared_setting_is_restored_when_the_last_user_is_done() -> None:
    values = ["before"]

    def change() -> Callable[[], object]:
        before = values[-1]
        values.append("changed")
        return lambda: values.append(before)

    setting = SharedSetting(change)
    first, second = setting.changed(), setting.changed()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert values == ["before", "changed"]
    second.__exit__(None, None, None)
    assert values == ["before", "changed", "before"]
    with pytest.raises(ZeroDivisionError), setting.changed():
        _ = 1 / 0
    assert values[3:] == ["changed", "before"]
