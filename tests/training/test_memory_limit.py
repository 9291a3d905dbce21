"""The guard: memory ends as an error a little before it ends for the machine."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
import torch

from tightfit import system
from tightfit.device import Device
from tightfit.errors import is_out_of_memory
from tightfit.training import memory_limit

CPU = Device("cpu", "this machine's CPU", bf16=True, fp16=False)
MIB = 1 << 20

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's limits are Linux's")


def take(mebibytes: int) -> torch.Tensor:
    return torch.ones(mebibytes * MIB // 4)


def test_a_budget_is_kept_and_lifted_again() -> None:
    budget = system.status("VmRSS") + 200 * MIB
    with memory_limit.limit_memory(CPU, print, budget):
        take(60)
        with pytest.raises(RuntimeError) as failure:
            take(600)
        assert is_out_of_memory(failure.value)
        take(60)
    take(600)


def test_others_that_take_memory_lower_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    with memory_limit.limit_memory(CPU, print):
        take(300)
        monkeypatch.setattr(system, "available", lambda: memory_limit._RESERVE + 50 * MIB)
        time.sleep(3 * memory_limit._EVERY)
        with pytest.raises(RuntimeError) as failure:
            take(300)
        assert is_out_of_memory(failure.value)
        monkeypatch.undo()
        time.sleep(3 * memory_limit._EVERY)
        take(300)


def test_a_look_that_fails_is_not_the_last() -> None:
    looks: list[int] = []

    def look() -> None:
        looks.append(1)
        if len(looks) == 2:
            raise OSError("too many open files")

    with memory_limit._polling(look):
        time.sleep(6 * memory_limit._EVERY)
    assert len(looks) > 3


@pytest.mark.parametrize("files", [system._CGROUPS[0], system._CGROUPS[1]], ids=["v2", "v1"])
def test_a_container_has_what_its_group_leaves(
    files: tuple[str, str, tuple[str, str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, usage, (read_once, read_often), mapped = files
    (tmp_path / limit).write_text(f"{1000 * MIB}\n")
    (tmp_path / usage).write_text(f"{700 * MIB}\n")
    cached = f"{read_once} {100 * MIB}\n{read_often} {70 * MIB}\n{mapped} {70 * MIB}\n"
    (tmp_path / "memory.stat").write_text(f"anon 5\n{cached}")
    monkeypatch.setattr(system, "_cgroup_dirs", lambda: [tmp_path])
    assert list(system.container_rooms()) == [(1000 * MIB, 400 * MIB)]
    assert memory_limit.headroom() == 400 * MIB - memory_limit._RESERVE
    monkeypatch.setattr(memory_limit, "status", lambda field: 300 * MIB)
    assert memory_limit.headroom(1000 * MIB) == 400 * MIB, "a container made for the budget is used to its end"
    assert memory_limit.headroom(900 * MIB) == 300 * MIB
    assert memory_limit.headroom(1000 * MIB + 3276) == 400 * MIB, "the kernel has cut its limit down to whole pages"
    assert memory_limit.headroom(2000 * MIB) == 400 * MIB - memory_limit._RESERVE, (
        "the container is smaller than the budget"
    )
    (tmp_path / limit).write_text("max\n")
    assert list(system.container_rooms()) == []


def test_swapping_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    swap = memory_limit._SwapMonitor(said.append)
    swap.look()
    monkeypatch.setattr(memory_limit, "status", lambda field: 1 << 30)
    swap.look()
    swap.look()
    assert len(said) == 1
    assert "1.00 GiB" in said[0]
