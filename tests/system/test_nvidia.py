"""What nvidia-smi answers, and a machine without it."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from tightfit.system import nvidia
from tightfit.system.nvidia import GpuProcess, driver_version, gpu_names, gpu_processes


def answering(monkeypatch: pytest.MonkeyPatch, text: str) -> list[list[str]]:
    """nvidia-smi answers this; returns the commands that are run."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> Any:
        commands.append(command)
        return SimpleNamespace(stdout=text)

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_the_processes_that_hold_memory_the_largest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = answering(monkeypatch, "12, /usr/bin/python3, 300\n40, Xorg, [N/A]\n7, C:\\a b, 1024\n")
    found = gpu_processes("abc")
    assert found[0] == GpuProcess(7, "C:\\a b", 1 << 30)
    assert found[1] == GpuProcess(12, "python3", 300 << 20)
    assert found[2] == GpuProcess(40, "Xorg", None)
    assert "--id=GPU-abc" in commands[0]


def test_driver_and_names(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, "580.65.06\n580.65.06\n")
    assert driver_version() == "580.65.06"
    answering(monkeypatch, "NVIDIA GeForce GTX 1650\n")
    assert gpu_names() == ["NVIDIA GeForce GTX 1650"]


@pytest.mark.parametrize(
    "error", [FileNotFoundError("nvidia-smi"), subprocess.CalledProcessError(9, "x"), subprocess.TimeoutExpired("x", 1)]
)
def test_a_machine_without_an_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Any, error: Exception) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(subprocess, "run", fail)
    monkeypatch.setattr(nvidia, "_PROC", tmp_path / "version")
    assert (driver_version(), gpu_names(), gpu_processes("abc")) == (None, [], [])
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19\n")
    assert driver_version() == "535.129.03"
