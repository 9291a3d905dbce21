"""Reads the data in the background while the libraries of a command are imported."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

from tightfit.job import Job


@contextlib.contextmanager
def prefetched(job: Job) -> Iterator[None]:
    """Read the data in the background while torch is imported, with garbage collection paused."""
    from tightfit.engine.dataset import prefetching

    with prefetching(job), gc_paused():
        yield


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Pause garbage collection: importing libraries creates a million objects and no garbage."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        # Move all objects to the oldest generation, so that the next collections skip them.
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        gc.enable()
