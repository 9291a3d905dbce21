"""A fake GPU for the CUDA build of torch: memory is counted, copies are made, kernels do not run. See README.md."""

from __future__ import annotations

import ctypes
import os
import re
from dataclasses import dataclass
from pathlib import Path

_BUILD = Path(__file__).parent / "build"
_LIBRARIES = ("libcudart.so.*", "libcublas.so.*", "libcublasLt.so.*", "libcuda.so.1", "libnvidia-ml.so.1")
_GENERATED = {".c", ".o", ".map"}
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_COUNTERS = ("used", "peak", "pinned", "pinned_peak", "launches", "allocations", "failed")


class NotBuilt(Exception):
    """The libraries are not there."""


@dataclass(frozen=True, kw_only=True)
class FakeGPU:
    """The GPUs that a program sees. All are alike."""

    memory: int = 4 << 30
    """Bytes of each."""
    capability: str = "7.5"
    """CUDA compute capability."""
    name: str = "Fake GPU"
    count: int = 1
    """How many there are, at most 4; CUDA_VISIBLE_DEVICES hides some of them, as usual."""
    others: int = 0
    """Bytes that other processes hold on each."""
    context: int = 400 << 20
    """Bytes that the CUDA context takes."""
    multiprocessors: int = 16
    fail_at: str = ""
    """Allocations of the driver's memory that fail, counted from 1: `12`, or `12-14`."""
    copy_speed: int = 0
    """Bytes per second of copies between host and GPU; 0: no time."""
    driver: str = ""
    """The newest CUDA version that the driver supports, such as `12.4`; empty: any."""
    no_kernel_image: bool = False
    """Whether every kernel launch fails, as on a GPU older than torch was built for."""
    log: bool = False
    """Whether every allocation is printed to stderr."""

    def environment(self) -> dict[str, str]:
        """The environment variables of a process that sees these GPUs, beside those it has anyway."""
        set_flag = {"NO_KERNEL_IMAGE": self.no_kernel_image, "LOG": self.log}
        values = {
            "MEMORY": self.memory,
            "CAPABILITY": self.capability.replace(".", ""),
            "NAME": self.name,
            "COUNT": self.count,
            "OTHERS": self.others,
            "CONTEXT": self.context,
            "MULTIPROCESSORS": self.multiprocessors,
            "FAIL_AT": _range(self.fail_at),
            "COPY_SPEED": self.copy_speed,
            "DRIVER": _cuda_version(self.driver),
            **{name: 1 for name, is_set in set_flag.items() if is_set},
        }
        preload = " ".join([*map(str, libraries()), *os.environ.get("LD_PRELOAD", "").split()])
        return {"LD_PRELOAD": preload} | {f"FAKE_GPU_{name}": str(value) for name, value in values.items()}


def libraries() -> list[Path]:
    """The libraries that replace CUDA's."""
    found = [[p for p in _BUILD.glob(name) if p.suffix not in _GENERATED] for name in _LIBRARIES]
    if not all(found):
        raise NotBuilt(f"The fake GPU is not built: run make -C {_BUILD.parent} PYTHON=… with torch's Python.")
    return [path for paths in found for path in paths]


def is_active() -> bool:
    """Whether this process sees fake GPUs."""
    return "FAKE_GPU_MEMORY" in os.environ and "libcudart" in os.environ.get("LD_PRELOAD", "")


def counters() -> dict[str, int]:
    """What this process has done so far: bytes used (peak, pinned), kernel launches, allocations, failed ones."""
    values = (ctypes.c_long * len(_COUNTERS))()
    ctypes.CDLL(str(libraries()[0])).fake_gpu_counters(values)
    return dict(zip(_COUNTERS, values, strict=True))


def fail_next(allocations: str) -> None:
    """In this process these allocations fail, as by `fail_at`, but counted from now on."""
    first, _, last = _range(allocations).partition("-")
    ctypes.CDLL(str(libraries()[0])).fake_gpu_fail_next(ctypes.c_long(int(first)), ctypes.c_long(int(last)))


def parse_bytes(text: str) -> int:
    """Bytes of `4GB`, `512M`, `1.5GiB` or `1000`; K, M and G are powers of 1024, as GPUs are sold."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not match:
        raise ValueError(f"{text!r} is not a size such as 4GB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _range(text: str) -> str:
    first, _, last = text.partition("-")
    return f"{int(first)}-{int(last or first)}" if text else "0-0"


def _cuda_version(text: str) -> int:
    major, _, minor = text.partition(".")
    return int(major) * 1000 + int(minor or 0) * 10 if text else 99_000
