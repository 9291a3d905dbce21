"""After an out-of-memory error: free what the attempt still holds; say if other processes hold the memory."""

from __future__ import annotations

import functools
import gc
import sys
import traceback
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from tightfit.engine.oom_message import read_message
from tightfit.errors import Interrupted, OutOfMemory, RunFailed, first_line, is_out_of_memory
from tightfit.messages import Message, in_sequence, msg
from tightfit.system.memory import trim_malloc
from tightfit.units import format_bytes

P = ParamSpec("P")
T = TypeVar("T")


def drop_frames(error: BaseException) -> None:
    """Drop the tensors that the frames of an error's traceback hold, usually the whole graph of a forward pass."""
    left: list[BaseException | None] = [error]
    while left:
        if (seen := left.pop()) is not None and seen.__traceback__ is not None:
            traceback.clear_frames(seen.__traceback__)
            seen.__traceback__ = None
            left += [seen.__cause__, seen.__context__]


def free_memory() -> None:
    """Free unreachable objects and the memory that allocators cache."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is None:
        return
    from tightfit.ops.buffer_pool import release_active

    release_active()  # a failed pass has not released its buffer pool
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    elif torch.backends.mps.is_available():
        torch.mps.empty_cache()
    trim_malloc()


def release_memory_on_error(function: Callable[P, T]) -> Callable[P, T]:
    """Raise errors without their frames: a notebook keeps the last traceback, and with it the model and its tensors."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except (RunFailed, Interrupted) as error:
            failure: Exception = error
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            failure = not_enough_memory(_out_of_memory(first_line(error)), first_line(error))
            drop_frames(error)
        drop_frames(failure)
        free_memory()
        raise failure from None

    return wrapped


def _out_of_memory(reason: Message) -> Message:
    return msg(
        "Out of memory outside of a training step, where no smaller micro-batch helps ({reason}): "
        "close other programs, or use a smaller model.",
        reason=reason,
    )


_NEARLY_ALL = 0.9  # of the machine's memory in use, and more than half of it by others: then they are the cause


def not_enough_memory(message: Message, reason: Message) -> OutOfMemory:
    """The error when there is nothing smaller to try; it says if other processes hold the memory."""
    others = _held_by_others(reason)
    return OutOfMemory(in_sequence(message, others) if others else message)


def _held_by_others(reason: Message) -> Message | None:
    found = read_message(reason)
    if found is None or found.memory == "cpu":
        return _host_held_by_others()
    if not found.taken_by_others:
        return None
    ids = [str(process) for process, _ in found.others]
    return msg(
        "Other processes hold {taken} of the GPU's {total}{processes}: end them or wait for them, and start again.",
        taken=format_bytes(found.taken_by_others),
        total=format_bytes(found.capacity or 0),
        processes=msg(" (process {ids})", ids=ids) if ids else "",
    )


def _host_held_by_others() -> Message | None:
    import psutil

    memory = psutil.virtual_memory()
    others = memory.total - memory.available - psutil.Process().memory_info().rss
    if memory.available > (1 - _NEARLY_ALL) * memory.total or others < memory.total / 2:
        return None
    return msg(
        "Other processes hold {taken} of this machine's {total}: end them or wait for them, and start again.",
        taken=format_bytes(others),
        total=format_bytes(memory.total),
    )
