"""Patches: functions of libraries that a simulation replaces, in its own thread only."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tightfit.compat import INITIALIZERS, MODULES_WITH_INITIALIZERS


@contextlib.contextmanager
def replaced(target: Any, name: str, replacement: Callable[..., Any]) -> Iterator[None]:
    """Inside, calls of `target.name` in this thread go to the replacement; other threads call the original.

    Another thread may replace the same function meanwhile, as transformers does while it loads a model, and restore
    ours after we have ended: then ours calls the original too.
    """
    original, thread, active = getattr(target, name), threading.get_ident(), True

    @functools.wraps(original)
    def choose(*args: Any, **kwargs: Any) -> Any:
        chosen = replacement if active and threading.get_ident() == thread else original
        return chosen(*args, **kwargs)

    setattr(target, name, choose)
    try:
        yield
    finally:
        active = False
        setattr(target, name, original)


@contextlib.contextmanager
def uninitialized_weights() -> Iterator[None]:
    """Inside, models are built without initializing their weights.

    Fake weights need no initial values, and initializing them may read data (ModernBERT's does). Like transformers'
    `no_init_weights`, but for this thread only.
    """
    from transformers import PreTrainedModel

    with contextlib.ExitStack() as patches:
        patches.enter_context(replaced(PreTrainedModel, "init_weights", _do_nothing))
        for module in filter(None, map(sys.modules.get, MODULES_WITH_INITIALIZERS)):
            for name in filter(functools.partial(hasattr, module), INITIALIZERS):
                patches.enter_context(replaced(module, name, _do_nothing))
        yield


def _do_nothing(*args: Any, **kwargs: Any) -> None:
    pass
