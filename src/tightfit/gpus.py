"""GPUs: memory and speed of common models, to plan for one that is not in this machine; and what was measured on one.

The table is `gpus.csv`, from published specifications: no GPU was measured by this project. `tightfit doctor` and
training runs measure the GPU of a machine, and keep what they found in a file.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections import Counter
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from tightfit.system.files import atomic_write

CUDA_CONTEXT = 512 << 20
"""Bytes of the CUDA context with the loaded kernels, where it was not measured: what others measured lies around it."""
_GIB, _MIB = 1 << 30, 1 << 20
_FILE = Path(__file__).with_name("gpus.csv")
_CONTEXTS = Path(__file__).with_name("cuda_contexts.csv")


class Speed(NamedTuple):
    """Published speed; a GPU reaches it only in large matmuls and long memory transfers."""

    fp32_tflops: float
    fp16_tflops: float
    """With fp32 accumulation."""
    bandwidth: float
    """Memory bandwidth in 10^9 bytes per second."""


class GPU(NamedTuple):
    """One line of the table: a GPU model with one size of memory."""

    name: str
    gb: float
    """Memory as advertised, in powers of 1024 as everywhere."""
    memory: int
    """Bytes that torch reports."""
    capability: int
    """CUDA compute capability, as 86 for 8.6."""
    multiprocessors: int
    speed: Speed | None
    """None if the clock is not published."""

    @property
    def label(self) -> str:
        """Name and memory: RTX 3060 12GB."""
        return f"{self.name} {self.gb:g}GB"


TYPICAL_MULTIPROCESSORS = 30  # of a GPU that is not in the table


def usable(gb: float) -> int:
    """Bytes that torch reports of this advertised memory, where no message shows it: the driver keeps 2 to 3 %."""
    return int(min(0.97 * gb, gb - 0.2) * _GIB)


@cache
def gpu_table() -> tuple[GPU, ...]:
    """All lines of the table."""
    return tuple(map(_gpu, _rows(_FILE)))


@cache
def published_contexts() -> tuple[int, int]:
    """Bytes of the smallest and the largest CUDA context that others measured with lazily loaded kernels."""
    sizes = [int(row["MiB"]) * _MIB for row in _rows(_CONTEXTS) if row["kernels"] == "lazy"]
    return min(sizes), max(sizes)


def _rows(file: Path) -> csv.DictReader[str]:
    return csv.DictReader(line for line in file.read_text("utf-8").splitlines() if not line.startswith("#"))


def _gpu(row: dict[str, str]) -> GPU:
    gb = float(row["GB"])
    memory = int(float(row["reported"]) * _GIB) if row["reported"] else usable(gb)
    capability, cores = int(row["capability"]), row["cores"]
    return GPU(row["name"], gb, memory, capability, _multiprocessors(capability, cores), _speed(row) if cores else None)


def _multiprocessors(capability: int, cores: str) -> int:
    """A multiprocessor has 64 cores for fp32 from Volta to the A100, and on the P100; else 128."""
    return (
        int(cores) // (64 if capability == 60 or 70 <= capability <= 80 else 128) if cores else TYPICAL_MULTIPROCESSORS
    )


def _speed(row: dict[str, str]) -> Speed:
    fp32 = 2 * int(row["cores"]) * int(row["MHz"]) / 1e6  # a core multiplies and adds in each cycle
    return Speed(fp32, fp32 * float(row["fp16"]), float(row["GB/s"]))


# Speeds that rank the recipes of a GPU that is not in the table.
TYPICAL_NVIDIA = ("RTX 3060", Speed(12.7, 25.5, 360))
TYPICAL_APPLE = ("Apple M2", Speed(3.6, 3.6, 100))


# Lookup by name: as people type it, or as torch reports it.


_SIZE = re.compile(r"(?<![a-z\d.])(\d+(?:\.\d+)?)\s*g(?:i?b)?\b")
_LAPTOP = re.compile(r"\bwith max-q design\b|mobile|notebook|笔记本(电脑)?")
_IGNORED = re.compile(r"sxm\d*|hbm\d*e?|max-q|[^a-z0-9.]")
_OPTIONAL = {"rtx", "gtx", "gt"}
"""People leave them out: 3060 is the RTX 3060."""
_ALSO_WRITTEN = {
    *("nvidia", "geforce", "tesla", "gpu", "graphics", "generation", "edition", "pcie"),
    *("blackwell", "workstation", "server", "lovelace", "desktop"),
}
"""Words of full names that do not tell GPUs apart, except where the table has them."""
_SIZE_TOLERANCE = 0.07  # a T4 16GB is also known as one of 15 GB


def find_gpus(name: str) -> list[GPU]:
    """The GPUs that a name may mean, the fewest words missing; several if the name does not tell them apart."""
    text = _LAPTOP.sub(" laptop ", name.lower())
    size = _SIZE.search(text)
    words = _words(_SIZE.sub(" ", text))
    ranked = [(rank, gpu) for gpu in gpu_table() if _has_size(gpu, size) and (rank := _rank(words, _words(gpu.name)))]
    best = min((rank for rank, _ in ranked), default=None)
    return [gpu for rank, gpu in ranked if rank == best]


def find_reported_gpu(name: str, memory: int | None) -> GPU | None:
    """The GPU of this machine in the table, by the name and the memory that torch reports."""
    alike = [gpu for gpu in find_gpus(name) if memory and abs(gpu.memory / memory - 1) < _SIZE_TOLERANCE]
    return min(alike, key=lambda gpu: abs(gpu.memory - (memory or 0)), default=None)


def _words(text: str) -> Counter[str]:
    """Letters and numbers apart, so that rtx3060 and RTX 3060 are the same; M2000M has two M."""
    return Counter(re.findall(r"[a-z]+|\d+", _IGNORED.sub(" ", text.lower())))


def _has_size(gpu: GPU, size: re.Match[str] | None) -> bool:
    return size is None or abs(float(size[1]) / gpu.gb - 1) < _SIZE_TOLERANCE


def _rank(given: Counter[str], family: Counter[str]) -> tuple[int, int] | None:
    """How many words of the family are missing and shared; None if the name has others, or tells nothing."""
    shared, others = given & family, set(given - family)
    if others - _ALSO_WRITTEN - _OPTIONAL or not any(word.isdigit() or word == "titan" for word in shared):
        return None
    missing = family - given
    return sum(count for word, count in missing.items() if word not in _OPTIONAL), -shared.total()


# What was measured on a GPU of this machine. It holds for the installed torch.


class MeasuredSpeed(NamedTuple):
    """Rates that a GPU reached in operations of the size that training has."""

    fp32_tflops: float
    fp16_tflops: float
    """In bf16 where the GPU has it."""
    bandwidth: float
    """Of its memory, in 10^9 bytes per second."""
    transfer: float
    """From pinned host memory, in 10^9 bytes per second."""
    launch_seconds: float
    """Of a kernel with next to no work."""


class MeasuredGPU(NamedTuple):
    """What was measured; None for what was not."""

    context: int | None = None
    """Bytes of the CUDA context, with the kernels that a training loads."""
    speed: MeasuredSpeed | None = None


def measured_gpu(uuid: str) -> MeasuredGPU:
    """What was measured on this very GPU, with the torch that is installed."""
    found = _measurements().get(uuid)
    if not uuid or not isinstance(found, dict) or found.get("torch") != version("torch"):
        return MeasuredGPU()
    try:
        speed = MeasuredSpeed(**found["speed"]) if found.get("speed") else None
        return MeasuredGPU(found.get("context"), speed)
    except TypeError:  # written by another version
        return MeasuredGPU()


def remember_gpu(uuid: str, *, context: int | None = None, speed: MeasuredSpeed | None = None) -> None:
    """Keep what was measured; what is not given stays as it is known."""
    known = measured_gpu(uuid)
    context, speed = context or known.context, speed or known.speed
    entry = {"torch": version("torch"), "context": context, "speed": speed._asdict() if speed else None}
    try:
        _measurement_file().parent.mkdir(parents=True, exist_ok=True)
        atomic_write(_measurement_file(), json.dumps({**_measurements(), uuid: entry}))
    except OSError:
        pass  # measured again next time


def _measurements() -> dict[str, Any]:
    try:
        found = json.loads(_measurement_file().read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _measurement_file() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "tightfit" / "gpus.json"
