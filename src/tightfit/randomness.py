"""Randomness: where all generators stand, to be put back there later."""

from __future__ import annotations

import random

import numpy as np
import torch


class Randomness:
    """The generators of Python, numpy and torch, as they were when this was made."""

    def __init__(self) -> None:
        self._python, self._numpy, self._torch = random.getstate(), np.random.get_state(), torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []

    def restore(self) -> None:
        """What is drawn from now on is what was drawn after this was made."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.set_rng_state(self._torch)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)
