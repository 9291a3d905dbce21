"""Memory limit: an allocation fails shortly before the machine or the budget runs out of memory."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
import torch

from tightfit.device import Device
from tightfit.errors import is_out_of_memory
from tightfit.system import memory
from tightfit.training import memory_limit

CPU = Device("cpu", "this machine's CPU", bf16=True, fp16=False)
MIB = 1 << 20

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's limits are Linux's")


def allocate(mebibytes: int) -> torch.Tensor:
    return torch.ones(mebibytes * MIB // 4)


def test_a_budget_limits_allocations_until_the_block_ends() -> None:
    budget = memory.proc_status("VmRSS") + 200 * MIB
    with memory_limit.limit_memory(CPU, print, budget):
        allocate(60)
        with pytest.raises(RuntimeError) as failure:
            allocate(600)
        assert is_out_of_memory(failure.value)
        allocate(60)
    allocate(600)


def test_the_limit_follows_the_available_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with memory_limit.limit_memory(CPU, print):
        allocate(300)
        monkeypatch.setattr(memory, "available_memory", lambda: memory.RESERVE + 50 * MIB)
        time.sleep(3 * memory_limit._POLL_SECONDS)
        with pytest.raises(RuntimeError) as failure:
            allocate(300)
        assert is_out_of_memory(failure.value)
        monkeypatch.undo()
        time.sleep(3 * memory_limit._POLL_SECONDS)
        allocate(300)


def test_polling_continues_after_a_failed_check() -> None:
    calls: list[int] = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise OSError("too many open files")

    with memory_limit._polling(check):
        time.sleep(6 * memory_limit._POLL_SECONDS)
    assert len(calls) > 3


@pytest.mark.parametrize("files", [memory._CGROUPS[0], memory._CGROUPS[1]], ids=["v2", "v1"])
def test_headroom_in_a_container_comes_from_its_cgroup(
    files: tuple[tuple[str, ...], str, tuple[str, str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (limit, *_), usage, (read_once, read_often), mapped = files
    (tmp_path / limit).write_text(f"{1000 * MIB}\n")
    (tmp_path / usage).write_text(f"{700 * MIB}\n")
    cached = f"{read_once} {100 * MIB}\n{read_often} {70 * MIB}\n{mapped} {70 * MIB}\n"
    (tmp_path / "memory.stat").write_text(f"anon 5\n{cached}")
    monkeypatch.setattr(memory, "_cgroup_dirs", lambda: [tmp_path])
    assert [group.headroom for group in memory.cgroups()] == [400 * MIB]
    assert memory_limit.headroom() == 400 * MIB - memory.RESERVE
    monkeypatch.setattr(memory_limit, "proc_status", lambda field, default=None: 300 * MIB)
    assert memory_limit.headroom(1000 * MIB) == 400 * MIB, "a container sized for the budget is used completely"
    assert memory_limit.headroom(900 * MIB) == 300 * MIB
    assert memory_limit.headroom(1000 * MIB + 3276) == 400 * MIB, "the kernel rounds its limit down to whole pages"
    assert memory_limit.headroom(2000 * MIB) == 400 * MIB - memory.RESERVE, "the container is smaller than the budget"
    assert memory_limit.headroom(needed=990 * MIB) == 390 * MIB, "without a budget, what the run needs is not reserved"
    assert memory_limit.headroom(needed=500 * MIB) == 400 * MIB - memory.RESERVE
    (tmp_path / limit).write_text("max\n")
    assert list(memory.cgroups()) == []


def test_swapping_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    swap = memory_limit._SwapMonitor(messages.append)
    swap.check()
    monkeypatch.setattr(memory_limit, "proc_status", lambda field, default=None: 1 << 30)
    swap.check()
    swap.check()
    assert len(messages) == 1
    assert "1.00 GiB" in messages[0]
