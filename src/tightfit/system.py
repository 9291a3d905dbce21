"""The operating system: malloc tuning, and the memory of the process, the machine and its cgroups.

glibc keeps freed memory: the same run of BERT-Large peaked at 6.4 GB resident with its defaults and at 2.6 GB with both
thresholds at 1 MB. At 32 KB the tensors of short micro-batches are returned too, and a simulation predicts the peak
within a percent or two. Small models train slower with it (docs/log.md).

The thresholds are settings of the whole process, so a program that imports tightfit has them only while a training runs
or something is measured. glibc does not tell what they were before. By default both start at 128 KB and grow with the
blocks that are freed, and once they are set they do not grow any more. So they are set back to what they grow to in a
program that frees large tensors, their largest default values, or to those of the environment.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from tightfit.processes import SharedSetting

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from malloc.h
MALLOC_THRESHOLD = 32 << 10
_DEFAULTS = {  # the option, the variable that sets it when a process starts, and the largest value that glibc chooses
    _M_TRIM_THRESHOLD: ("MALLOC_TRIM_THRESHOLD_", 64 << 20),
    _M_MMAP_THRESHOLD: ("MALLOC_MMAP_THRESHOLD_", 32 << 20),
}


def tuned_malloc() -> AbstractContextManager[None]:
    """Inside, glibc returns freed memory to the system at once; other C libraries are left alone."""
    return _thresholds.changed()


def trim_malloc() -> None:
    """Return to the system what is free now."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


def _tune() -> Callable[[], None]:
    _set_thresholds(dict.fromkeys(_DEFAULTS, MALLOC_THRESHOLD))
    trim_malloc()
    return lambda: _set_thresholds({option: _configured(*default) for option, default in _DEFAULTS.items()})


_thresholds = SharedSetting(_tune)


def _set_thresholds(values: dict[int, int]) -> None:
    libc = _glibc()
    if libc is not None:
        for option, value in values.items():
            libc.mallopt(option, value)


def _configured(variable: str, default: int) -> int:
    value = os.environ.get(variable, "")
    return int(value) if value.isdecimal() else default


def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "gnu_get_libc_version") else None  # musl has neither function


# Memory, from /proc and /sys


_CGROUPS = (  # limit, usage, page cache, mapped part of the page cache; in versions 2 and 1
    ("memory.max", "memory.current", ("inactive_file", "active_file"), "file_mapped"),
    (
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
        "total_mapped_file",
    ),
)


def proc_status(field: str, default: int | None = None) -> int:
    """A field of /proc/self/status in bytes; OSError if it is missing and there is no default."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    if default is None:
        raise OSError(f"/proc/self/status has no {field}")
    return default


def available_memory() -> int:
    """The bytes that the machine can give out without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return sys.maxsize


def cgroup_headroom() -> Iterator[tuple[int, int]]:
    """The limit and the headroom of each cgroup of this process, in bytes; versions 1 and 2.

    The page cache counts as used until the memory is needed, and writing a checkpoint leaves all its bytes there.
    """
    for folder in _cgroup_dirs():
        for limit, usage, cached, mapped in _CGROUPS:
            with contextlib.suppress(OSError, ValueError):
                maximum = int((folder / limit).read_text())
                used, stat = int((folder / usage).read_text()), folder / "memory.stat"
                freeable = sum(_stat(stat, name) for name in cached) - _stat(stat, mapped)
                yield maximum, maximum - used + max(0, freeable)


def _cgroup_dirs() -> Iterator[Path]:
    root = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                yield from (root / path.lstrip("/"), root)
            elif "memory" in controllers.split(","):
                yield from (root / "memory" / path.lstrip("/"), root / "memory")


def _stat(file: Path, name: str) -> int:
    return next((int(line.split()[1]) for line in file.read_text().splitlines() if line.split()[0] == name), 0)
