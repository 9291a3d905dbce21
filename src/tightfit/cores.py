"""Cores: how many processes of ours can work at the same time."""

from __future__ import annotations

import os
import sys


def cores() -> int:
    """How many can be used; one where a process cannot fork."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
