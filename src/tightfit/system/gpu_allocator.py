"""Settings of torch's GPU allocator: expandable segments, unless the user has decided otherwise.

Batches have different lengths, so blocks have ever other sizes, and what one batch leaves in a segment is often too
small for the next. An expandable segment grows instead. The user decides with PYTORCH_ALLOC_CONF.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from tightfit.messages import Message, msg

_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
_EXPANDABLE = "expandable_segments"


def chosen_by_user() -> bool | None:
    """Whether the environment asks for expandable segments; None if it does not mention them."""
    settings = _settings().lower()
    return f"{_EXPANDABLE}:true" in settings if _EXPANDABLE in settings else None


def expandable_in_training() -> bool:
    """Whether a training run has expandable segments."""
    chosen = chosen_by_user()
    return _is_supported() if chosen is None else chosen


def use_expandable_segments(log: Callable[[Message], None]) -> None:
    """Switch them on where torch supports them, before the first tensor is on the GPU."""
    if chosen_by_user() is not None or not _is_supported():
        return
    import torch

    _set(_with_expandable(True))
    try:
        torch.empty(1, device="cuda")
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:  # some virtual GPUs cannot map memory
        _set(_with_expandable(False))
        return
    log(
        msg(
            "PyTorch's expandable_segments is on, so that batches of different lengths take less GPU memory; "
            "PYTORCH_ALLOC_CONF=expandable_segments:False turns it off"
        )
    )


def _with_expandable(is_on: bool) -> str:
    return ",".join([*filter(None, [_settings()]), f"{_EXPANDABLE}:{is_on}"])


def _set(settings: str) -> None:
    from tightfit.compat import set_allocator_settings

    set_allocator_settings(settings)


def _settings() -> str:
    return ",".join(value for name in _VARIABLES if (value := os.environ.get(name)))


def _is_supported() -> bool:
    """torch has them on Linux, with CUDA."""
    import torch

    return sys.platform == "linux" and torch.version.hip is None
