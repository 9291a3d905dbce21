"""NVIDIA's driver: its version, its GPUs and the processes that hold their memory, as nvidia-smi tells them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc/driver/nvidia/version")
_SECONDS = 20  # a driver that is being loaded answers late
_MIB = 1 << 20


class GpuProcess(NamedTuple):
    """A process that holds memory of a GPU."""

    pid: int
    name: str
    size: int | None
    """Bytes; None where the driver does not tell, as on Windows."""


def driver_version() -> str | None:
    """The version of the driver, such as 580.65.06; None if there is none."""
    if rows := _query("gpu", "driver_version"):
        return rows[0][0]
    found = re.search(r"\d+\.\d+(\.\d+)?", _PROC.read_text()) if _PROC.exists() else None
    return found[0] if found else None


def gpu_names() -> list[str]:
    """The GPUs that the driver knows, whether torch can use them or not."""
    return [row[0] for row in _query("gpu", "name")]


def gpu_processes(uuid: str) -> list[GpuProcess]:
    """The processes that hold memory of a GPU, the largest first; empty if the driver does not list them."""
    rows = _query("compute-apps", "pid,process_name,used_memory", f"--id=GPU-{uuid.removeprefix('GPU-')}")
    found = [GpuProcess(int(pid), Path(name).name, _bytes(size)) for pid, name, size in rows if pid.isdigit()]
    return sorted(found, key=lambda process: -(process.size or 0))


def _bytes(mib: str) -> int | None:
    return int(mib) * _MIB if mib.isdigit() else None


def _query(what: str, fields: str, *options: str) -> list[list[str]]:
    """Rows of what nvidia-smi answers; none if it is not installed or fails."""
    command = ["nvidia-smi", f"--query-{what}={fields}", "--format=csv,noheader,nounits", *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    width = fields.count(",") + 1
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
    return [row for row in rows if len(row) == width]
