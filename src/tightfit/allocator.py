"""The C allocator: made to give freed tensors back at once.

glibc keeps what is freed for later: the same run of BERT-Large peaked at 6.4 GB resident with its defaults and at
2.6 GB with both thresholds at 1 MB. At 32 KB the tensors of short slices go back too, and a rehearsal can tell the
peak to a percent or two. Small models pay for it with time (docs/log.md).
"""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from malloc.h
THRESHOLD = 32 << 10


def give_back_freed_memory() -> bool:
    """Tune glibc for this process and hand back what is free now; elsewhere there is nothing to tune."""
    libc = _glibc()
    if libc is None:
        return False
    tuned = all(libc.mallopt(option, THRESHOLD) == 1 for option in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD))
    libc.malloc_trim(0)
    return tuned


def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "gnu_get_libc_version") else None  # musl has neither
