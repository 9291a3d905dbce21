"""A loss that is no number stops the run, and the message says what is left and what to try."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tightfit.errors import LossNotFinite
from tightfit.training.checkpoints import write_manifest
from tightfit.training.finite import check_finite


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_loss_that_is_no_number_is_refused(tmp_path: Path, value: float) -> None:
    args: Any = SimpleNamespace(output_dir=str(tmp_path), learning_rate=2e-5)
    state: Any = SimpleNamespace(global_step=7)
    check_finite("loss", 0.7, args, state)
    with pytest.raises(LossNotFinite, match=rf"The loss became {value} after 7 steps.*no checkpoint.*rate 5e-06"):
        check_finite("loss", value, args, state)
    (tmp_path / "checkpoint-4").mkdir()
    write_manifest(tmp_path / "checkpoint-4", {})
    with pytest.raises(LossNotFinite, match=r"checkpoint-4 holds the last good weights"):
        check_finite("gradient", value, args, state)
