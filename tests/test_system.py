"""malloc is tuned while a training needs it and set back afterwards."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from tightfit import system

pytestmark = pytest.mark.skipif(system._glibc() is None, reason="only glibc's malloc is tuned")
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


def test_large_blocks_are_returned_to_the_system_only_while_malloc_is_tuned() -> None:
    with system.tuned_malloc():
        assert is_mmapped(MIB)
        with system.tuned_malloc():
            assert is_mmapped(MIB)
        assert is_mmapped(MIB)
    assert not is_mmapped(MIB)
    assert is_mmapped(64 * MIB)


SCRIPT = """
from test_system import MIB, is_mmapped
from tightfit.system import tuned_malloc

with tuned_malloc():
    pass
print(is_mmapped(MIB), is_mmapped(4 * MIB))
"""


def test_thresholds_of_the_environment_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(2 * MIB))
    folder = __file__.rpartition("/")[0]
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
