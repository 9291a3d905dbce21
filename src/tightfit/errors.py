"""Errors: one sentence each, with a fix the user can apply.

TightfitError            exit code
├── BadInput                 2   an input that the user can correct
│   ├── DataError                the data file: columns, rows, encoding, labels
│   ├── ModelError               the model: folder, config, tokenizer, weights
│   ├── RecipeError              a strategy, its settings, or two in conflict
│   └── OutputError              the run folder or its disk
├── DoesNotFit               1   no recipe fits the budget; carries the closest plan
├── RunFailed                1   a run failed after it had started
│   ├── LossNotFinite            the loss became NaN or infinite
│   ├── OutOfMemory              memory ran out at the smallest micro-batch
│   │   └── PreflightFailed          found before the first step
│   └── SaveFailed               a checkpoint or the model could not be written
└── Interrupted          130, 143   Ctrl-C or SIGTERM: a checkpoint was written first
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable
from typing import Any

_MAX_CHARACTERS = 1000
OOM_TEXTS = (
    "out of memory",  # CUDA error: out of memory; MPS backend out of memory; CUDA out of memory. Tried to …
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",  # Windows
    "could not create a memory object",  # oneDNN
)
"""Parts of library messages that mean out of memory."""


class TightfitError(Exception):
    """Base class; the message says what happened, with numbers, and how to fix it."""

    exit_code = 1

    def __str__(self) -> str:
        """One line of limited length, whatever the names and values in it contain."""
        text = "".join(character if character.isprintable() else " " for character in super().__str__())
        line = " ".join(text.split())
        return (
            line
            if len(line) <= _MAX_CHARACTERS
            else f"{line[: _MAX_CHARACTERS // 2]} … {line[-_MAX_CHARACTERS // 2 :]}"
        )


class BadInput(TightfitError, ValueError):
    """An input that the user can correct."""

    exit_code = 2


class DataError(BadInput):
    """The data file: columns, rows, encoding, labels."""


class ModelError(BadInput):
    """The model: folder, config, tokenizer, weights."""


class RecipeError(BadInput):
    """A strategy, its settings, or two in conflict."""


class OutputError(BadInput):
    """The run folder or its disk."""


class DoesNotFit(TightfitError):
    """No recipe fits the budget. Carries the closest plan, with options to make it fit."""

    def __init__(self, message: str, plan: Any) -> None:
        super().__init__(message)
        self.plan = plan

    def __reduce__(self) -> tuple[type[DoesNotFit], tuple[str, Any]]:
        """Pickling support: it may be raised in another process."""
        return DoesNotFit, (self.args[0], self.plan)


class RunFailed(TightfitError):
    """A run failed after it had started."""


class LossNotFinite(RunFailed):
    """The loss became NaN or infinite."""


class OutOfMemory(RunFailed):
    """Memory ran out, and the micro-batch cannot become smaller."""


class PreflightFailed(OutOfMemory):
    """Memory ran out before the first step: another recipe can still be tried."""


class SaveFailed(RunFailed):
    """A checkpoint or the model could not be written."""


class Interrupted(TightfitError):
    """Ctrl-C or SIGTERM: a checkpoint was written first."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


def short_repr(value: Any) -> str:
    """A short repr for messages: values from YAML can be arbitrarily long or nested."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = _MAX_CHARACTERS
    try:
        return short.repr(value)
    except ValueError:  # integers of more than 4,300 digits have no repr
        return f"a very long {type(value).__name__}"


def suggest(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the closest known name, then all of them."""
    known = list(known)
    near = closest_name(name, known)
    hint = f"did you mean '{near}'? Choose" if near else "choose"
    return f"{hint} from {', '.join(known)}."


def closest_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most similar, whatever its case; None if none is similar."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    return by_lower[near[0]] if near else None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of Python, torch or a backend means out of memory."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in OOM_TEXTS)


def first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
