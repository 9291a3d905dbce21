"""Random number generator state: saved before a step and restored when the step is repeated, and after a run."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch


class RngState:
    """A snapshot of the random number generators of Python, numpy and torch."""

    def __init__(self) -> None:
        self._python, self._numpy, self._torch = random.getstate(), np.random.get_state(), torch.get_rng_state()
        # Reading it would initialize CUDA, after which this process cannot fork any more.
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        self._mps = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None

    def restore(self) -> None:
        """Set all generators back to the snapshot."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.set_rng_state(self._torch)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)
        if self._mps is not None:
            torch.mps.set_rng_state(self._mps)


@contextlib.contextmanager
def preserved_rng() -> Iterator[None]:
    """Afterwards all generators are as before."""
    state = RngState()
    try:
        yield
    finally:
        state.restore()
