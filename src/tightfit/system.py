"""The C allocator: made to give freed tensors back at once.

glibc keeps what is freed for later: the same run of BERT-Large peaked at 6.4 GB resident with its defaults and at
2.6 GB with both thresholds at 1 MB. At 32 KB the tensors of short slices go back too, and a rehearsal can tell the
peak to a percent or two. Small models pay for it with time (docs/log.md).
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from malloc.h
THRESHOLD = 32 << 10


def tune_malloc() -> bool:
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


# Memory of this process, of the machine and of its control groups, as /proc and /sys tell it.


_CGROUPS = (
    ("memory.max", "memory.current", ("inactive_file", "active_file"), "file_mapped"),
    (
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
        "total_mapped_file",
    ),
)


def status(field: str, default: int | None = None) -> int:
    """A line of /proc/self/status, in bytes; without a default OSError where there is none."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    if default is None:
        raise OSError(f"/proc/self/status has no {field}")
    return default


def available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return sys.maxsize


def container_rooms() -> Iterator[tuple[int, int]]:
    """How large the control groups of this process are and what they leave it, in either version.

    Files that were read or written count as used until the room is needed; a checkpoint leaves all of its bytes there.
    """
    for folder in _cgroup_dirs():
        for limit, usage, cached, mapped in _CGROUPS:
            with contextlib.suppress(OSError, ValueError):
                most = int((folder / limit).read_text())
                used, stat = int((folder / usage).read_text()), folder / "memory.stat"
                freeable = sum(_stat(stat, name) for name in cached) - _stat(stat, mapped)
                yield most, most - used + max(0, freeable)


def _cgroup_dirs() -> Iterator[Path]:
    root = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if kinds == "":
                yield from (root / path.lstrip("/"), root)
            elif "memory" in kinds.split(","):
                yield from (root / "memory" / path.lstrip("/"), root / "memory")


def _stat(file: Path, name: str) -> int:
    return next((int(line.split()[1]) for line in file.read_text().splitlines() if line.split()[0] == name), 0)
