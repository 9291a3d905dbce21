"""Exit of a command: errors as one sentence and an exit code, and an exit that does not wait for Python."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator

from tightfit.compat import run_exit_functions
from tightfit.errors import STOPPED, TightfitError, is_out_of_memory, one_line
from tightfit.i18n import render
from tightfit.messages import Message, msg


def fast_exit() -> None:
    """Exit without freeing every Python object, which saves a second; call it last, in a `finally` clause.

    Exit functions run as usual. It returns, and Python exits normally, if a thread is still running, if the output
    cannot be flushed, or if the exception being handled is not a SystemExit with an integer code.
    """
    error = sys.exc_info()[1]
    code = error.code if isinstance(error, SystemExit) else error
    if code is None:
        code = 0
    if not isinstance(code, int) or _has_live_threads():
        return
    try:
        run_exit_functions()
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return
    os._exit(code)


def _has_live_threads() -> bool:
    return any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread())


_NO_MEMORY = msg(
    "there is not enough memory to load the data and the model: close other programs, or use a smaller model."
)


def print_error(message: Message) -> None:
    """One line on stderr, in the language of the command line."""
    sys.stderr.write(f"tightfit: {one_line(render(message))}\n")


@contextlib.contextmanager
def exit_with_message(when_stopped: Message = STOPPED) -> Iterator[None]:
    """Turn errors that a user can fix into one sentence and an exit code; all others are bugs and keep a traceback."""
    try:
        yield
    except TightfitError as error:
        message, code = error.message, error.exit_code
    except OSError as error:
        reason = f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
        message, code = msg("{reason}. Check the path, its permissions and the disk.", reason=reason), 2
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        message, code = _NO_MEMORY, 1
    except KeyboardInterrupt:
        message, code = when_stopped, 130
    else:
        return
    print_error(message)
    raise SystemExit(code)
