"""Leaving: a process that has said all it had to say ends, and does not take a million objects apart one by one."""

from __future__ import annotations

import os
import sys
import threading

from tightfit.compat import run_exit_functions


def leave_at_once() -> None:
    """In the last line of a program, with what is being raised as its end; a second sooner than Python would.

    Whatever wanted to be called at the end is called. Where something is still going on, or nobody takes what was
    written, and for any end but a plain one, this returns, and Python ends the process its own way.
    """
    end = sys.exc_info()[1]
    code = end.code if isinstance(end, SystemExit) else end
    if code is None:
        code = 0
    if not isinstance(code, int) or _somebody_works():
        return
    try:
        run_exit_functions()
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return
    os._exit(code)


def _somebody_works() -> bool:
    return any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread())
