"""Out of memory: how to get back the memory that a failed attempt still holds."""

from __future__ import annotations

import functools
import gc
import sys
import traceback
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from tightfit.errors import OutOfMemory, RunFailed, Stopped, first_line, is_out_of_memory

P = ParamSpec("P")
T = TypeVar("T")

_NO_ROOM = (
    "There is not enough memory, and not for a step that could be made smaller ({reason}): close other programs, or "
    "use a smaller model."
)


def forget(error: BaseException) -> None:
    """Drop the tensors that the frames of a failed attempt hold: the whole graph of a forward pass, usually."""
    left: list[BaseException | None] = [error]
    while left:
        if (seen := left.pop()) is not None and seen.__traceback__ is not None:
            traceback.clear_frames(seen.__traceback__)
            seen.__traceback__ = None
            left += [seen.__cause__, seen.__context__]


def free_memory() -> None:
    """Hand back what nobody holds any more, also what allocators keep for later."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is None:
        return
    from tightfit.ops.buffer_pool import leave

    leave()  # a pass that failed has not come to where its rooms close
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    elif torch.backends.mps.is_available():
        torch.mps.empty_cache()
    from tightfit.system import tune_malloc

    tune_malloc()


def release_memory_on_error(function: Callable[P, T]) -> Callable[P, T]:
    """A notebook keeps a failure's traceback, and with it the model and all around it: leave only the sentence."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except (RunFailed, Stopped) as error:
            failure: Exception = error
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            failure = OutOfMemory(_NO_ROOM.format(reason=first_line(error)))
            forget(error)
        forget(failure)
        free_memory()
        raise failure from None

    return wrapped
