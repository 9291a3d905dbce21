"""Elsewhere: work done in a process of its own, so that it leaves nothing in the memory of this one.

A rehearsal keeps tens of megabytes of what it learnt, which would count against the training after it. A forked process
inherits all that is loaded but torch's threads, and a rehearsal does without. Where there is no cheap fork it is done
here.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from tightfit.cores import do_without_threads
from tightfit.errors import RunFailed

Answer = TypeVar("Answer")


def elsewhere(work: Callable[..., Answer], *given: Any) -> Answer:
    """What the work returns, or raises."""
    if sys.platform != "linux" or _a_card_is_in_use():
        return work(*given)
    here, there = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_answer, args=(there, work, given))
    try:
        process.start()
        there.close()
        answer: Any = here.recv()
    except EOFError:
        raise RunFailed("The forecast was ended from outside, perhaps for want of memory: free some.") from None
    finally:
        if process.pid is not None:
            process.terminate()  # it has answered, or nobody waits for its answer any more
            process.join()
    if isinstance(answer, BaseException):
        raise answer
    found: Answer = answer
    return found


def _a_card_is_in_use() -> bool:
    """Its driver does not outlive a fork."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()


def _answer(pipe: Connection, work: Callable[..., Any], given: tuple[Any, ...]) -> None:
    do_without_threads()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both, and one sentence is enough
    try:
        pipe.send(work(*given))
    except Exception as error:
        pipe.send(error)
