"""What is found in a machine, and why its GPU cannot be used."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from parts import CPU

from tightfit.doctor import machine
from tightfit.doctor.machine import examine, gpu_problem
from tightfit.errors import BadInput
from tightfit.messages import msg
from tightfit.simulation.op_counts import ELEMENTWISE, MATMUL, MATMUL_16BIT
from tightfit.timing.predicted_step_time import Rates

RATES = Rates({MATMUL: [(1.0, 2e-11)], MATMUL_16BIT: [(1.0, 1e-11)], ELEMENTWISE: [(1.0, 1.0), (9.0, 4e-10)]}, 0.0, {})


def test_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cpu_rates", lambda: RATES)
    monkeypatch.setattr(machine, "cgroups", lambda: [SimpleNamespace(limit=3 << 30), SimpleNamespace(limit=1 << 62)])
    monkeypatch.setattr(machine, "ulimits", lambda: [(2 << 30, 1)])
    found = {finding.key: finding for finding in examine(CPU)}
    assert list(found) == ["processor", "torch", "memory", "limits", "bf16", "speed"]
    assert found["limits"].text == "cgroup 3.00 GiB, ulimit 2.00 GiB"
    assert found["limits"].value == {"cgroup_bytes": 3 << 30, "ulimit_bytes": 2 << 30}
    assert found["speed"].value == {"fp32_gflops": 50.0, "bf16_gflops": 100.0, "bandwidth": 2.5, "warning": None}
    assert found["speed"].text == "matmuls 50 GFLOP/s in fp32, 100 in bf16; memory 2.5 GB/s"


def build_of_torch(
    monkeypatch: pytest.MonkeyPatch, cuda: str | None, *, names: list[str], failure: Exception | None = None
) -> None:
    """A build of torch on a machine with these GPUs, where using one fails."""

    def init() -> None:
        if failure is not None:
            raise failure

    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.setattr(machine, "find_device", lambda name: CPU)
    monkeypatch.setattr(machine, "gpu_names", lambda: names)


TOO_OLD = "The NVIDIA driver on your system is too old (found version %d). Please update your GPU driver"


@pytest.mark.parametrize(
    ("cuda", "names", "failure", "said"),
    [
        (None, [], None, None),
        (
            None,
            ["GTX 1650"],
            None,
            "built for CPUs only, and this machine has a GTX 1650: install the build of",
        ),
        ("13.0", ["GTX 1650"], None, None),
        ("13.0", [], "Found no NVIDIA driver on your system.", None),
        ("13.0", ["GTX 1650"], "CUDA unknown error - reboot", "torch cannot use GTX 1650: CUDA unknown error - reboot"),
        (
            "13.0",
            [],
            TOO_OLD % 12040,
            "CUDA 12.4, and this torch is built for CUDA 13.0: update the driver to 580",
        ),
        ("13.0", [], TOO_OLD % 12040, "or install the build of torch for CUDA 12.6."),
        (
            "12.6",
            [],
            TOO_OLD % 11080,
            "CUDA 11.8, and this torch is built for CUDA 12.6: update the driver to 525",
        ),
    ],
)
def test_why_a_gpu_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, cuda: str | None, names: list[str], failure: str | None, said: str | None
) -> None:
    build_of_torch(monkeypatch, cuda, names=names, failure=RuntimeError(failure) if failure else None)
    problem = gpu_problem()
    assert (problem is None) if said is None else (said in str(problem))


def test_a_gpu_without_kernels_in_this_build(monkeypatch: pytest.MonkeyPatch) -> None:
    message = msg("torch cannot use {gpu}: {reason}", gpu="GTX 1050 Ti", reason="no kernels")
    build_of_torch(monkeypatch, "13.0", names=["GTX 1050 Ti"], failure=BadInput(message))
    assert gpu_problem() == message
