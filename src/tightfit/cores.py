"""Cores: how many processes of ours can work at the same time, and what a forked one may use."""

from __future__ import annotations

import os
import sys


def cores() -> int:
    """How many can be used; one where a process cannot fork."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


def do_without_threads() -> None:
    """First of all in a forked process: torch's threads have stayed behind, and it would wait for them for ever."""
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(1)
