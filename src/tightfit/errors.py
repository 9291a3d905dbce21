"""Every error a user can meet, each one sentence with a way out.

TightfitError            exit code
├── BadInput                 2   something given can be corrected
│   ├── DataError                the data file: columns, rows, encoding, labels
│   ├── ModelError               the model: folder, config, tokenizer, weights
│   ├── RecipeError              a strategy, its settings, or two that clash
│   └── OutputError              the run folder or the disk under it
├── DoesNotFit               1   no recipe keeps to the budget; carries the closest plan
├── RunFailed                1   a run that had started could not end
│   ├── LossNotFinite            the loss became NaN or infinite
│   ├── OutOfMemory              memory ran out and nothing is left to make smaller
│   │   └── PreflightFailed          found out before the first step
│   └── SaveFailed               a checkpoint or the model could not be written
└── Stopped              130, 143   Ctrl-C or SIGTERM: a checkpoint was written first
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable
from typing import Any

_LONGEST = 1000  # characters
OOM_TEXTS = (
    "out of memory",  # CUDA error: out of memory; MPS backend out of memory; CUDA out of memory. Tried to …
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",  # Windows
    "could not create a memory object",  # oneDNN
)
"""What libraries say when memory runs out."""


class TightfitError(Exception):
    """What happened, the numbers, the way out."""

    exit_code = 1

    def __str__(self) -> str:
        """One line, whatever a file's names and values hold."""
        text = "".join(character if character.isprintable() else " " for character in super().__str__())
        line = " ".join(text.split())
        return line if len(line) <= _LONGEST else f"{line[: _LONGEST // 2]} … {line[-_LONGEST // 2 :]}"


class BadInput(TightfitError, ValueError):
    """Something given can be corrected."""

    exit_code = 2


class DataError(BadInput):
    """The data file: columns, rows, encoding, labels."""


class ModelError(BadInput):
    """The model: folder, config, tokenizer, weights."""


class RecipeError(BadInput):
    """A strategy, its settings, or two that clash."""


class OutputError(BadInput):
    """The run folder or the disk under it."""


class DoesNotFit(TightfitError):
    """No recipe keeps to the budget. Carries the plan that comes closest and the ways out."""

    def __init__(self, message: str, plan: Any) -> None:
        super().__init__(message)
        self.plan = plan

    def __reduce__(self) -> tuple[type[DoesNotFit], tuple[str, Any]]:
        """It may come from another process."""
        return DoesNotFit, (self.args[0], self.plan)


class RunFailed(TightfitError):
    """A run that had started could not end."""


class LossNotFinite(RunFailed):
    """The loss became NaN or infinite."""


class OutOfMemory(RunFailed):
    """Memory ran out and nothing is left to make smaller."""


class PreflightFailed(OutOfMemory):
    """Found out before the first step: nothing is trained yet, and another recipe may be taken."""


class SaveFailed(RunFailed):
    """A checkpoint or the model could not be written."""


class Stopped(TightfitError):
    """Ctrl-C or SIGTERM: a checkpoint was written first."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


def shown(value: Any) -> str:
    """A value from a file, for a sentence; YAML can hold a number, or a list in a list, that nobody could write out."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = _LONGEST
    try:
        return short.repr(value)
    except ValueError:  # Python refuses numbers of more than 4,300 digits
        return f"a very long {type(value).__name__}"


def suggest(word: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown word: the nearest known one, then all of them."""
    known = list(known)
    spelled = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), spelled, n=1, cutoff=0.5)
    hint = f"did you mean '{spelled[near[0]]}'? " if near else ""
    return f"{hint}There are: {', '.join(known)}."


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, whoever says it."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in OOM_TEXTS)


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
