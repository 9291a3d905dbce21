"""Errors: one sentence each, with a fix the user can apply.

TightfitError            exit code
├── BadInput                 2   an input that the user can correct
│   ├── DataError                the data file: columns, rows, encoding, labels
│   ├── ModelError               the model: folder, config, tokenizer, weights
│   ├── RecipeError              a strategy, its settings, or two in conflict
│   └── OutputError              the run folder or its disk
│       └── FolderInUse              another process writes into it
├── DoesNotFit               1   no recipe fits the budget; carries the closest plan
├── RunFailed                1   a run failed after it had started
│   ├── LossNotFinite            the loss became NaN or infinite
│   ├── OutOfMemory              memory ran out at the smallest micro-batch
│   │   └── PreflightFailed          found before the first step
│   └── SaveFailed               a checkpoint or the model could not be written
└── Interrupted          130, 143   Ctrl-C or SIGTERM
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tightfit.messages import Message, msg, verbatim

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

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

    def __init__(self, message: Message) -> None:
        super().__init__(message)

    @property
    def message(self) -> Message:
        """What happened, as data: `tightfit.i18n.render` shows it in other languages than English."""
        return verbatim(self.args[0])

    def __str__(self) -> str:
        return one_line(self.message)


def one_line(text: str) -> str:
    """One line of limited length, whatever the names and values in it contain."""
    line = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    if len(line) <= _MAX_CHARACTERS:
        return line
    return f"{line[: _MAX_CHARACTERS // 2]} … {line[-_MAX_CHARACTERS // 2 :]}"


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


class FolderInUse(OutputError):
    """Another process writes into the folder."""


class DoesNotFit(TightfitError):
    """No recipe fits the budget. Carries the closest plan, with options to make it fit.

    The plan is None if the budget is too small for the process and the weights: then nothing was planned.
    """

    def __init__(self, message: Message, plan: Any) -> None:
        super().__init__(message)
        self.plan = plan

    def __reduce__(self) -> tuple[type[DoesNotFit], tuple[Message, Any]]:
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


STOPPED = msg("stopped.")


class Interrupted(TightfitError):
    """Ctrl-C or SIGTERM; the message says what was kept, such as a checkpoint."""

    def __init__(self, message: Message, signal_number: int, result: Any = None) -> None:
        super().__init__(message)
        self.result = result
        """What was done until then, where it is of use."""
        self.exit_code = 128 + signal_number


def short_repr(value: Any) -> Message:
    """A short repr for messages: values from YAML can be arbitrarily long or nested."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = _MAX_CHARACTERS
    try:
        return verbatim(short.repr(value))
    except ValueError:  # integers of more than 4,300 digits have no repr
        return msg("a very long {type}", type=type(value).__name__)


def why_invalid(error: ErrorDetails) -> Message:
    """What pydantic says about a value, as data where it is one of the usual reasons."""
    limit = str(next(iter(error.get("ctx", {}).values()), "")).removesuffix(".0")
    match error["type"]:
        case "greater_than_equal":
            return msg("input should be greater than or equal to {limit}", limit=limit)
        case "greater_than":
            return msg("input should be greater than {limit}", limit=limit)
        case "less_than_equal":
            return msg("input should be less than or equal to {limit}", limit=limit)
        case "less_than":
            return msg("input should be less than {limit}", limit=limit)
        case "int_parsing":
            return msg("input should be a valid integer, unable to parse string as an integer")
        case "float_parsing":
            return msg("input should be a valid number, unable to parse string as a number")
        case "bool_parsing":
            return msg("input should be a valid boolean, unable to interpret input")
        case "string_type":
            return msg("input should be a valid string")
        case "finite_number":
            return msg("input should be a finite number")
    return verbatim(error["msg"][:1].lower() + error["msg"][1:])


def suggest(name: str, known: Iterable[str]) -> Message:
    """The end of a message about an unknown name: the closest known name, then all of them."""
    known = list(known)
    near = closest_name(name, known)
    if near:
        return msg("did you mean '{near}'? Choose from {known}.", near=near, known=known)
    return msg("choose from {known}.", known=known)


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


def first_line(error: BaseException) -> Message:
    """The message of one of our errors, or the first line of another's."""
    if isinstance(error, TightfitError):
        return error.message
    return verbatim((str(error).strip().splitlines() or [type(error).__name__])[0])
