"""What a process holds besides the tensors of training, and what is said about it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from parts import CPU

from tightfit.device import GPUS
from tightfit.simulation import process_size
from tightfit.simulation.process_size import bf16_code_bytes, keep_process_sizes, process_bytes, process_size_note

MIB = 1 << 20


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
    before = process_bytes(CPU)
    found, has_amx = bf16_code_bytes(), torch.cpu._is_amx_tile_supported()
    # For AMX oneDNN generates kernels besides those for AVX-512: 43 MB in all instead of 25.
    assert 2 * MIB < found < (60 if has_amx else 40) * MIB
    assert process_bytes(CPU) - before < 4 * MIB
