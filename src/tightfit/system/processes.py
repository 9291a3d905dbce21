"""Run functions in other processes, forked or newly started, and one at a time in this one."""

from __future__ import annotations

import atexit
import contextlib
import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import IO, TYPE_CHECKING, Any, Generic, TypeVar

from tightfit.errors import BadInput, RunFailed, first_line
from tightfit.messages import Message, msg, verbatim

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

T = TypeVar("T")
Item = TypeVar("Item")
_POLL_SECONDS = 0.5


def usable_cpus() -> int:
    """The number of CPUs this process may use; 1 where it cannot fork."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


def be_killed_first() -> None:
    """Call in a forked process: where memory runs out, the OOM killer takes it and not the process that forked it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def use_one_thread() -> None:
    """Call first in a forked process: torch's threads do not survive a fork, and it would wait for them forever."""
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(1)


# Forked processes
#
# A simulation keeps tens of megabytes of traces, which would count towards the memory of the training run after it. A
# forked process inherits every loaded library but torch's threads, which a simulation does not use. Where forking is
# not possible, the work is done in this process.


def run_in_fork(work: Callable[..., T], *args: Any) -> T:
    """Call `work` in a forked process, or in this one where forking is unsafe; its result or exception is passed on."""
    if sys.platform != "linux" or _cuda_is_initialized():
        return work(*args)
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_child_main, args=(sender, work, args))
    try:
        process.start()
        sender.close()
        outcome: Any = receiver.recv()
    except EOFError:
        killed = msg("The memory estimate was killed, probably by the OOM killer: free some memory.")
        raise RunFailed(killed) from None
    finally:
        if process.pid is not None:
            process.terminate()  # it has sent its result, or this process was interrupted
            process.join()
    if isinstance(outcome, BaseException):
        raise outcome
    result: T = outcome
    return result


def _start_in_fork() -> None:
    """Objects that it inherits are not searched for garbage: that would copy every page that holds one."""
    gc.freeze()
    be_killed_first()
    use_one_thread()


def _cuda_is_initialized() -> bool:
    """CUDA cannot be used in a process forked after its initialization."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()


def _child_main(pipe: Connection, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
    _start_in_fork()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both processes; the parent reports it
    try:
        pipe.send(work(*args))
    except Exception as error:
        pipe.send(_picklable(error))


def _picklable(error: Exception) -> Exception:
    """The error, or its message in a RunFailed: some errors cannot be pickled, and others not be made from a pickle."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RunFailed(verbatim(f"{type(error).__name__}: {first_line(error)}"))
    return error


class Prefetch(Generic[T]):
    """Work that was started in a forked process, to be collected later."""

    def __init__(self, work: Callable[..., T], *args: Any) -> None:
        self._receiver, sender = multiprocessing.Pipe(duplex=False)
        fork = multiprocessing.get_context("fork")
        fork.Process(target=_silent_child_main, args=(sender, work, args), daemon=True).start()
        sender.close()

    def result(self) -> T | None:
        """Wait for the result; None if the work failed or its process died."""
        try:
            with self._receiver:
                result: T | None = self._receiver.recv()
        except (EOFError, OSError):
            return None
        return result

    def cancel(self) -> None:
        """Do not wait; the process ends when it fails to send its result."""
        self._receiver.close()


def _silent_child_main(pipe: Connection, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """stdout and stderr belong to the parent, which does the work again if it failed here and reports the error."""
    with Path(os.devnull).open("w") as devnull:
        for stream in (1, 2):
            os.dup2(devnull.fileno(), stream)
    try:
        pipe.send(work(*args))
    except Exception:
        pipe.send(None)


def map_in_forks(work: Callable[[Item], T], items: Sequence[Item], processes: int) -> Iterator[tuple[Item, T]]:
    """Yield every item with its result, computed in parallel; stops early if a process dies.

    The processes inherit `work` and everything it refers to; only items and results are pickled.
    """
    from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor  # late: `--help` is asked to be fast

    fork = multiprocessing.get_context("fork")
    try:
        with ProcessPoolExecutor(processes, fork, _start_fork, (work,)) as pool:
            yield from zip(items, pool.map(_call_inherited, items), strict=True)
    except (BrokenProcessPool, OSError):
        return


_inherited: list[Callable[[Any], Any]] = []
"""In a forked process of `map_in_forks`: the work that it inherited. Empty in every other process."""


def _start_fork(work: Callable[[Any], Any]) -> None:
    _start_in_fork()
    _inherited.append(work)


def _call_inherited(item: Any) -> Any:
    return _inherited[-1](item)


# Fresh processes, whose memory holds nothing of this one


class Worker:
    """A fresh Python process that calls functions one after another, in the order in which they are submitted.

    Nothing that a function changes in its process is changed here, and no lock that a thread holds here is held there.
    Functions are pickled, which means by name: those of the main script and local ones cannot be sent. The process is
    started for the first function, again if it was killed, and it ends with this one, whatever ends this one.
    """

    def __init__(self, setup: Callable[[], None] | None = None) -> None:
        self._setup = setup
        """Called first in the process, before it imports what a function needs."""
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        """Also after a fork: thread and process belong to the process that started them."""
        self._owner = os.getpid()
        self._requests: SimpleQueue[tuple[Future[Any], bytes] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._process: _Process | None = None
        self._running: Future[Any] | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(
        self, function: Callable[..., T], *args: Any, on_tick: Callable[[float], None] = lambda seconds: None
    ) -> T:
        """The result of a function, or its exception; `on_tick` is called regularly with the elapsed seconds."""
        start, future = time.monotonic(), self.submit(function, *args)
        try:
            while not wait([future], _POLL_SECONDS).done:
                on_tick(time.monotonic() - start)
        except BaseException:
            self.cancel(future)  # nobody waits for its result: Ctrl-C, or on_tick failed
            raise
        return future.result()

    def submit(self, function: Callable[..., T], *args: Any) -> Future[T]:
        """Queue a call; raises here if the function or an argument cannot be pickled."""
        try:
            request, future = pickle.dumps((function, args)), Future[T]()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise BadInput(_not_importable(error)) from error
        with self._lock:
            if self._owner != os.getpid():
                self._forget()
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, daemon=True, name="tightfit-worker")
                self._thread.start()
                atexit.register(self.close)
            self._requests.put((future, request))
        return future

    def cancel(self, future: Future[Any]) -> None:
        """Drop a call from the queue; if it runs already, kill the process."""
        if future.cancel() or future.done():
            return
        with self._lock:
            if self._running is future and self._process is not None:
                self._process.kill()

    def close(self) -> None:
        """End the process; a call that runs now fails."""
        with self._lock:
            if self._thread is None or self._owner != os.getpid():
                return
            atexit.unregister(self.close)
            while not self._requests.empty():
                if (request := self._requests.get()) is not None:
                    request[0].cancel()
            self._requests.put(None)
            if self._process is not None:
                self._process.kill()
            self._forget()

    def _serve(self) -> None:
        """The thread that waits for the process, one request at a time."""
        requests = self._requests
        while (request := requests.get()) is not None:
            future, content = request
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(self._exchange(future, content))
            except BaseException as error:
                future.set_exception(error)

    def _exchange(self, future: Future[Any], request: bytes) -> Any:
        with self._lock:
            if self._process is None or self._process.has_ended():
                self._process = _Process(self._setup)
            self._running, process = future, self._process
        try:
            return process.call(request)
        finally:
            with self._lock:
                self._running = None


class _Process:
    """The process of a worker: requests go to its standard input, results come from its standard output."""

    def __init__(self, setup: Callable[[], None] | None) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115, what it prints; closed with this object
        # In a session of its own, Ctrl-C reaches only this process. Its imports are found where ours are.
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOTSTRAP, *(path for path in sys.path if isinstance(path, str))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        self._setup = setup

    def call(self, request: bytes) -> Any:
        """Send a request and wait for its outcome."""
        if self._setup is not None:
            setup, self._setup = self._setup, None
            self.call(pickle.dumps((setup, ())))
        assert self._process.stdin
        assert self._process.stdout
        try:
            pickle.dump(request, self._process.stdin)
            self._process.stdin.flush()
            outcome = pickle.load(self._process.stdout)
        except (EOFError, OSError, ValueError, pickle.UnpicklingError):
            self.kill()
            raise RunFailed(self._exit_reason()) from None
        found, error, trace = pickle.loads(outcome)
        if error is not None:
            raise error from WorkerTraceback(trace)
        return found

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        """Kill it with the processes that it has forked."""
        if self._process.returncode is None:
            _kill_group(self._process)
            self._process.wait()

    def _exit_reason(self) -> Message:
        code = self._process.returncode
        if code < 0:
            return msg("killed by signal {signal}, probably out of memory", signal=-code)
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", errors="replace").strip().splitlines()
        last = lines[-1] if lines else msg("no message")
        return msg("The worker process ended with exit code {code}: {reason}", code=code, reason=last)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    if sys.platform == "win32":
        process.kill()
    else:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


class WorkerTraceback(Exception):
    """The cause of an exception that a worker raised: its traceback, as text."""


# In the process of a worker


_BOOTSTRAP = (
    "import sys; sys.path[:] = sys.argv[1:]; del sys.argv[1:]; "
    "from tightfit.system.processes import serve_requests; serve_requests()"
)


def serve_requests() -> None:
    """Call the functions that arrive on standard input, until the sending process closes it or exits."""
    source, sink = _take_over_streams()
    requests: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read_requests, args=(source, requests), daemon=True).start()
    while True:
        pickle.dump(_outcome(requests.get()), sink)
        sink.flush()


def _take_over_streams() -> tuple[IO[bytes], IO[bytes]]:
    """Standard input and output as files; what libraries print goes to standard error, and they read nothing."""
    source, sink = os.dup(0), os.dup(1)
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    if sys.platform != "win32":  # a forked process that lives longer than this one must not keep the output open
        os.register_at_fork(after_in_child=partial(os.close, source))
        os.register_at_fork(after_in_child=partial(os.close, sink))
    return os.fdopen(source, "rb"), os.fdopen(sink, "wb")


def _read_requests(source: IO[bytes], requests: SimpleQueue[bytes]) -> None:
    """Read in a thread, so that this process ends at once, also in the middle of a call, when nobody waits for it."""
    with contextlib.suppress(EOFError):
        while True:
            requests.put(pickle.load(source))
    if sys.platform != "win32" and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)  # with the processes that it has forked
    os._exit(0)


def _outcome(request: bytes) -> bytes:
    """The pickled result, exception and traceback of a call, each None if there is none."""
    try:
        function, args = _unpickled(request)
        return pickle.dumps((function(*args), None, None))
    except Exception as error:
        return pickle.dumps((None, _picklable(error), traceback.format_exc()))


def _unpickled(request: bytes) -> Any:
    try:
        return pickle.loads(request)
    except (AttributeError, ImportError) as error:
        raise BadInput(_not_importable(error)) from error


def _not_importable(error: Exception) -> Message:
    return msg(
        "A function that runs in another process must be importable from a module, and this one is not ({reason}): "
        "move it out of the main script into a module of its own.",
        reason=first_line(error),
    )


# This process: one task at a time, and settings that are restored


class ProcessLock:
    """Held while a training or a simulation runs in this process.

    A simulation replaces functions of torch and measures the size of the process, and a training draws from the random
    number generators that all threads share: in one process they must not run at the same time.
    """

    def __init__(self) -> None:
        self._reset()
        if sys.platform != "win32":  # in a fork the threads that may have held it do not exist
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock, self._depth = threading.RLock(), 0

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Wait until no other thread holds it; a thread may hold it several times."""
        with self._lock:
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1

    @contextlib.contextmanager
    def held_if_free(self) -> Iterator[bool]:
        """Do not wait: False if it is held, by another thread or by this one."""
        if not self._lock.acquire(blocking=False):
            yield False
            return
        try:
            free = self._depth == 0
            with self.held() if free else contextlib.nullcontext():
                yield free
        finally:
            self._lock.release()


process_lock = ProcessLock()


class SharedSetting:
    """A setting of the whole process, changed while at least one thread needs it and then restored."""

    def __init__(self, change: Callable[[], Callable[[], object]]) -> None:
        self._change = change
        """Changes the setting and returns the function that restores it."""
        self._lock, self._users = threading.Lock(), 0
        self._restore: Callable[[], object] = lambda: None

    @contextlib.contextmanager
    def changed(self) -> Iterator[None]:
        """Inside, the setting is changed."""
        with self._lock:
            if self._users == 0:
                self._restore = self._change()
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._restore()
