"""malloc is tuned while a training needs it and set back afterwards; memory is what cgroups and ulimit leave."""

from __future__ import annotations

import ctypes
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tightfit.system import memory

pytestmark = pytest.mark.skipif(memory._glibc() is None, reason="only glibc's malloc is tuned")
MIB = 1 << 20


class Mallinfo(ctypes.Structure):
    """struct mallinfo2 of malloc.h; `hblks` is the number of blocks that are mmapped."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def is_mmapped(size: int) -> bool:
    """Whether malloc takes a block of this size from the system and will return it when it is freed."""
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype, libc.malloc.restype = Mallinfo, ctypes.c_void_p
    libc.malloc.argtypes, libc.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
    before = libc.mallinfo2().hblks
    block = libc.malloc(size)
    after = libc.mallinfo2().hblks
    libc.free(block)
    return bool(after > before)


NESTED = """
from test_memory import MIB, is_mmapped
from tightfit.system.memory import tuned_malloc

with tuned_malloc():
    found = [is_mmapped(MIB)]
    with tuned_malloc():
        found.append(is_mmapped(MIB))
    found.append(is_mmapped(MIB))
print(*found, is_mmapped(MIB), is_mmapped(64 * MIB))
"""


def run_script(script: str) -> list[str]:
    """What a script prints in a fresh process: the heap of this one may have free blocks, which malloc takes first."""
    folder = __file__.rpartition("/")[0]
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_large_blocks_are_returned_to_the_system_only_while_malloc_is_tuned() -> None:
    assert run_script(NESTED) == ["True", "True", "True", "False", "True"]


SCRIPT = """
from test_memory import MIB, is_mmapped
from tightfit.system.memory import tuned_malloc

with tuned_malloc():
    pass
print(is_mmapped(MIB), is_mmapped(4 * MIB))
"""


def test_thresholds_of_the_environment_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(2 * MIB))
    assert run_script(SCRIPT) == ["False", "True"]


BF16 = """
import os
import torch
from tightfit.engine.meter import resident_bytes
from tightfit.system.memory import trim_malloc, tuned_malloc

def multiply(rows):
    with torch.autocast("cpu", torch.bfloat16):
        torch.nn.functional.linear(torch.ones(rows, 64), weight).sum().backward()

weight = torch.ones(64, 64, requires_grad=True)
before = dict(os.environ)
with tuned_malloc():
    for rows in range(20, 80):
        multiply(rows)
    trim_malloc()
    full = resident_bytes()
    for rows in range(80, 140):
        multiply(rows)
    trim_malloc()
    print((resident_bytes() - full) >> 20, os.environ == before)
print(os.environ == before)
"""


def test_products_in_bf16_of_many_shapes_do_not_fill_the_memory() -> None:
    """The code of each takes some 600 KB, of which torch and oneDNN would keep that of 1024 shapes."""
    growth, changed, restored = run_script(BF16)
    assert int(growth) < 8
    assert (changed, restored) == ("False", "True")


# Memory


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 8 GiB to give out and without limits; this process holds 100 MiB."""
    monkeypatch.setattr(memory, "available_memory", lambda: 8192 * MIB)
    monkeypatch.setattr(memory, "proc_status", lambda field, default=None: 100 * MIB)
    monkeypatch.setattr(memory, "_cgroup_dirs", lambda: [tmp_path, tmp_path / "outer"])
    (tmp_path / "outer").mkdir()
    return tmp_path


def limit(folder: Path, maximum: int, used: int, cached: int, high: str = "max") -> None:
    """Write the files of a cgroup of version 2, in MiB."""
    (folder / "memory.max").write_text(str(maximum * MIB))
    (folder / "memory.high").write_text(high)
    (folder / "memory.current").write_text(str(used * MIB))
    (folder / "memory.stat").write_text(f"inactive_file {cached * MIB}\nactive_file 0\nfile_mapped 0\n")


def test_without_limits_the_machine_is_what_can_be_used(machine: Path) -> None:
    assert memory.usable_memory() == (8192 + 100) * MIB - memory.RESERVE


def test_a_container_of_its_own_can_be_used_completely(machine: Path) -> None:
    """Of 400 MiB, 300 are page cache that is given back, and 100 are this process."""
    limit(machine, 1000, 400, 300)
    assert memory.usable_memory() == 1000 * MIB
    assert memory.total_memory() == 1000 * MIB


def test_what_others_hold_in_the_container_cannot_be_used(machine: Path) -> None:
    limit(machine, 1000, 400, 0)
    assert memory.usable_memory() == 700 * MIB


def test_the_smallest_of_nested_cgroups_and_its_soft_limit_count(machine: Path) -> None:
    limit(machine, 1000, 100, 0)
    limit(machine / "outer", 2000, 1600, 0, high=str(1900 * MIB))
    assert memory.usable_memory() == 400 * MIB


def test_all_cgroups_that_this_process_is_nested_in_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "4:memory:/slurm/job\n1:cpu:/slurm\n0::/user\n"
    monkeypatch.setattr(memory, "_ROOT", tmp_path)
    monkeypatch.setattr(memory, "_OWN_CGROUPS", tmp_path / "own")
    (tmp_path / "own").write_text(lines)
    (tmp_path / "memory" / "slurm" / "job").mkdir(parents=True)
    nested = tmp_path / "memory" / "slurm"
    assert list(memory._cgroup_dirs()) == [nested / "job", nested, tmp_path / "memory", tmp_path]


@pytest.mark.parametrize("option", [resource.RLIMIT_AS, resource.RLIMIT_DATA])
def test_ulimit_is_a_limit(option: int, machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (500 * MIB if kind == option else -1, -1))
    assert memory.usable_memory() == 500 * MIB - memory.RESERVE
    assert memory.total_memory() == 500 * MIB
