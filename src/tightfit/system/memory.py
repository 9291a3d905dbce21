"""Memory of the operating system: malloc tuning, and what machine, cgroups and ulimit leave to this process.

glibc keeps freed memory: the same run of BERT-Large peaked at 6.4 GB resident with its defaults and at 2.6 GB with both
thresholds at 1 MB. At 32 KB the tensors of short micro-batches are returned too, and a simulation predicts the peak
within a percent or two. Small models train slower with it (docs/log.md).

The thresholds are settings of the whole process, so a program that imports tightfit has them only while a training runs
or something is measured. glibc does not tell what they were before. By default both start at 128 KB and grow with the
blocks that are freed, and once they are set they do not grow any more. So they are set back to what they grow to in a
program that frees large tensors, their largest default values, or to those of the environment.

torch and oneDNN each keep the code that they generate for products in bf16 on a CPU, some 300 KB for each shape of a
product. By default they keep 1024 of them each: a run with texts of many lengths grows by 600 MB. They read how many
when they run the first one, so a program that has run some before keeps its own number.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from tightfit.system.processes import SharedSetting

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from malloc.h
MALLOC_THRESHOLD = 32 << 10
_DEFAULTS = {  # the option, the variable that sets it when a process starts, and the largest value that glibc chooses
    _M_TRIM_THRESHOLD: ("MALLOC_TRIM_THRESHOLD_", 64 << 20),
    _M_MMAP_THRESHOLD: ("MALLOC_MMAP_THRESHOLD_", 32 << 20),
}


_CODE_CACHES = {"LRU_CACHE_CAPACITY": "32", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32"}  # more than a micro-batch needs


def tuned_malloc() -> AbstractContextManager[None]:
    """Inside, glibc returns freed memory to the system at once; other C libraries are left alone.

    Caches of generated code that are made inside are small.
    """
    return _thresholds.changed()


def trim_malloc() -> None:
    """Return to the system what is free now."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


def _tune() -> Callable[[], None]:
    _set_thresholds(dict.fromkeys(_DEFAULTS, MALLOC_THRESHOLD))
    trim_malloc()
    added = {name: value for name, value in _CODE_CACHES.items() if name not in os.environ}
    os.environ.update(added)

    def restore() -> None:
        _set_thresholds({option: _configured(*default) for option, default in _DEFAULTS.items()})
        for name in added:
            os.environ.pop(name, None)

    return restore


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


# Memory, from /proc, /sys and getrlimit


RESERVE = 256 << 20
"""Bytes of the machine's memory that are left to what is not this process's data."""
_ROOT, _OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_CGROUPS = (  # limits, usage, page cache, mapped part of the page cache; in versions 2 and 1
    (("memory.max", "memory.high"), "memory.current", ("inactive_file", "active_file"), "file_mapped"),
    (
        ("memory.limit_in_bytes",),
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
        "total_mapped_file",
    ),
)


@dataclass(frozen=True)
class Cgroup:
    """The memory of a cgroup, which counts the page cache as used until the memory is needed."""

    limit: int
    used: int
    cached: int
    mapped: int
    """The part of the page cache that processes map: the code of libraries."""

    @property
    def headroom(self) -> int:
        """Bytes that may still be allocated with all libraries kept in memory."""
        return self.limit - self.used + max(0, self.cached - self.mapped)

    @property
    def used_by_others(self) -> int:
        """Bytes that other processes and the kernel hold and cannot give back."""
        return max(0, self.used - self.cached - proc_status("RssAnon", 0))


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


def total_memory() -> int:
    """The memory of the machine, or of the container that this process is limited to."""
    import psutil

    limits = (
        [] if sys.platform != "linux" else [*(group.limit for group in cgroups()), *(size for size, _ in ulimits())]
    )
    return min([int(psutil.virtual_memory().total), *limits])


def usable_memory() -> int:
    """The bytes that this process may hold in all, libraries and what it holds already included."""
    if sys.platform != "linux":
        import psutil

        return int(psutil.virtual_memory().available + psutil.Process().memory_info().rss)
    own = available_memory() - RESERVE + proc_status("RssAnon", 0)
    in_cgroups = [group.limit - group.used_by_others for group in cgroups()]
    # ulimit counts reserved memory too: threads and libraries that are still to come reserve more than they use.
    in_ulimits = [proc_status("VmRSS") + free - RESERVE for _, free in ulimits()]
    return max(0, min([own, *in_cgroups, *in_ulimits]))


def cgroups() -> Iterator[Cgroup]:
    """The cgroups of this process that limit memory, with all that they are nested in; versions 1 and 2."""
    for folder in _cgroup_dirs():
        for limits, usage, cached, mapped in _CGROUPS:
            with contextlib.suppress(OSError):
                used, stat = int((folder / usage).read_text()), folder / "memory.stat"
                for limit in filter(None, (_limit(folder / name) for name in limits)):
                    yield Cgroup(limit, used, sum(_stat(stat, name) for name in cached), _stat(stat, mapped))


def ulimits() -> Iterator[tuple[int, int]]:
    """The limits of `ulimit -v` and `ulimit -d` where they are set, each with the bytes that are left."""
    import resource

    for kind, field in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        soft, _ = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY:
            yield soft, max(0, soft - proc_status(field, 0))


def _cgroup_dirs() -> Iterator[Path]:
    """From the innermost cgroup to the root. In a container the path may be one that only its host has."""
    with contextlib.suppress(OSError):
        for line in _OWN_CGROUPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "" or "memory" in controllers.split(","):
                top = _ROOT / "memory" if controllers else _ROOT
                nested = Path(path.lstrip("/"))
                yield from (top / part for part in (nested, *nested.parents) if (top / part).is_dir())


def _limit(file: Path) -> int | None:
    """None where there is none, which version 2 writes as `max`."""
    text = file.read_text().strip() if file.exists() else "max"
    return None if text == "max" else int(text)


def _stat(file: Path, name: str) -> int:
    return next((int(line.split()[1]) for line in file.read_text().splitlines() if line.split()[0] == name), 0)
