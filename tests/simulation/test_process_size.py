"""What a process holds besides the tensors of training, and what is said about it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from parts import CPU

from tightfit.device import GPUS
from tightfit.simulation import process_size
from tightfit.simulation.process_size import keep_process_sizes, process_bytes, process_size_note

MIB = 1 << 20
ENV = {**os.environ, "PYTHONPATH": os.pathsep.join((str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")))}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    sizes: list[int] = []
    monkeypatch.setattr(process_size, "_sizes", sizes)
    monkeypatch.setattr(process_size, "is_slim", lambda: False)
    return sizes


def test_what_a_notebook_holds_already_counts_and_is_said(measured: list[int]) -> None:
    """A plan and a training in one notebook differ by what was made between them."""
    before = process_bytes(CPU)
    assert len(process_size_note(CPU, before)) == 1
    held = np.ones(64 * MIB, dtype=np.uint8)
    after = process_bytes(CPU)
    assert after - before == pytest.approx(held.nbytes, abs=16 * MIB)
    _, growth = process_size_note(CPU, after)
    assert "more than at an earlier prediction in this process" in growth
    assert "Restart the kernel" in growth
    assert process_size_note(GPUS["T4 16GB"], after) == ()


def test_a_worker_keeps_the_size_of_a_new_process(measured: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_size, "_kept_sizes", {})
    keep_process_sizes()
    before = process_bytes(CPU), process_bytes(CPU, loads_weights=True)
    held = np.ones(64 * MIB, dtype=np.uint8)
    assert (process_bytes(CPU), process_bytes(CPU, loads_weights=True)) == before
    assert process_size._measured_size(False) > before[0] + held.nbytes // 2
    assert measured == []  # nothing has grown, so no note says so


def test_code_for_products_in_bf16_is_measured_and_not_left_in_this_process() -> None:
    """In a process of its own: how much one grows depends on what was freed in it before."""
    done = subprocess.run([sys.executable, "-c", BF16_CODE], capture_output=True, text=True, check=True, env=ENV)
    found, grown = map(int, done.stdout.split())
    assert 2 * MIB < found < 40 * MIB
    assert grown < 4 * MIB


BF16_CODE = """
from parts import CPU
from tightfit.simulation.process_size import bf16_code_bytes, process_bytes
before = process_bytes(CPU)
print(bf16_code_bytes(), process_bytes(CPU) - before)
"""
