"""Sentences: what a user can mend is one sentence on standard error and an exit code."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from tightfit.errors import TightfitError
from tightfit.oom import is_out_of_memory

_NO_MEMORY = (
    "there is not enough memory even to read the data and the model: close other programs, or use a smaller model."
)


@contextlib.contextmanager
def what_can_be_mended_is_said(when_stopped: str = "stopped.") -> Iterator[None]:
    """Ours, the system's and want of memory; whatever else is our mistake and stays a traceback."""
    try:
        yield
    except TightfitError as error:
        _leave(str(error), error.exit_code)
    except OSError as error:
        about = f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
        _leave(f"the system says: {about}. Check the path, its permissions and the disk.", 2)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        _leave(_NO_MEMORY, 1)
    except KeyboardInterrupt:
        _leave(when_stopped, 130)


def _leave(sentence: str, code: int) -> None:
    sys.stderr.write(f"tightfit: {sentence}\n")
    raise SystemExit(code) from None
