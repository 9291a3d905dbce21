"""Loading the best weights without a second set of them in memory."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tightfit.engine.meter import ResidentGauge
from tightfit.system import tune_malloc
from tightfit.training.checkpoints import load_weights_in_place

MIB = 1 << 20


def layers() -> torch.nn.Sequential:
    return torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False) for _ in range(24)))


@pytest.mark.skipif(sys.platform != "linux", reason="reads the kernel's high-water mark")
def test_weights_are_copied_one_at_a_time(tmp_path: Path) -> None:
    tune_malloc()
    saved, model = layers(), layers()
    save_file(saved.state_dict(), tmp_path / "model.safetensors")
    gauge = ResidentGauge()
    before = gauge.now()
    assert load_weights_in_place(tmp_path / "model.safetensors", model)
    assert gauge.pop_peak() - before < 24 * MIB  # all of them are 96 MiB
    for ours, theirs in zip(model.parameters(), saved.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_a_file_of_another_model_is_left_alone(tmp_path: Path) -> None:
    save_file({"other": torch.ones(2)}, tmp_path / "model.safetensors")
    assert not load_weights_in_place(tmp_path / "model.safetensors", layers())
    assert not load_weights_in_place(tmp_path / "nothing.safetensors", layers())
