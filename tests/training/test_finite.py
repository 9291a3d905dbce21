"""A loss that is no number stops the run, and the message says what is left; steps that fp16 skips are counted.

accelerate scales gradients on GPUs only. Here it does so on the CPU, with torch's own scaler and autocast.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from accelerate.utils import AutocastKwargs
from stress.fixtures import NO_DROPOUT, STEPS_PER_EPOCH, Workspace, same_bits
from transformers import TrainerCallback

from tightfit.device import find_device
from tightfit.errors import LossNotFinite
from tightfit.report.html import write_report
from tightfit.training import run as training_run
from tightfit.training.checkpoints import write_manifest
from tightfit.training.finite import check_finite
from tightfit.training.trainer import Trainer


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


# fp16


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("fp16"), **NO_DROPOUT)


@contextmanager
def fp16_on_the_cpu(scale: float, *, autocast: bool = True) -> Iterator[None]:
    """Gradients start with this scale; without autocast the scaler alone is left of fp16."""
    create = Trainer.create_accelerator_and_postprocess

    def with_scaler(self: Trainer) -> None:
        create(self)
        self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        self.accelerator.native_amp = True
        self.accelerator.autocast_handler = AutocastKwargs(enabled=autocast)

    with (
        mock.patch.object(training_run, "find_device", lambda name: replace(find_device(name), fp16=True)),
        mock.patch.object(Trainer, "create_accelerator_and_postprocess", with_scaler),
    ):
        yield


FP16 = ["mixed-precision:dtype=fp16", "micro-batch:size=4"]


def test_scaled_gradients_train_the_same_weights(workspace: Workspace) -> None:
    """Micro-batches add up scaled, and are clipped after they were unscaled: a power of two leaves no trace."""
    clipped: dict[str, Any] = {"max_grad_norm": 0.1, "max_steps": 5}
    plain = workspace.train("plain", FP16[1:], **clipped)
    with fp16_on_the_cpu(65536.0, autocast=False):
        scaled = workspace.train("scaled", FP16, **clipped)
    norms = [[entry["grad_norm"] for entry in run.history if "grad_norm" in entry] for run in (plain, scaled)]
    assert norms[0] == norms[1]
    assert max(norms[0]) > 0.1
    assert same_bits(workspace.weights("scaled"), workspace.weights("plain"))
    assert (plain.skipped_steps, scaled.skipped_steps) == (None, 0)


class Unchanged(TrainerCallback):
    """Counts the steps that left all weights as they were."""

    count = 0

    def on_step_begin(self, *args: Any, model: torch.nn.Module, **kwargs: Any) -> None:
        self._before = [weight.clone() for weight in model.parameters()]

    def on_step_end(self, *args: Any, model: torch.nn.Module, **kwargs: Any) -> None:
        self.count += all(map(torch.equal, self._before, model.parameters()))


def test_steps_that_overflow_are_skipped_and_counted(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first epoch all, and one in the second, which a resumed run trains; and the run says so."""
    unchanged, init = Unchanged(), Trainer.__init__
    monkeypatch.setattr(
        Trainer, "__init__", lambda self, **kwargs: (init(self, **kwargs), self.add_callback(unchanged))[0]
    )
    with fp16_on_the_cpu(2.0**28):
        workspace.train("overflow", FP16, epochs=1)
    with fp16_on_the_cpu(2.0**28):
        run = workspace.train("overflow", FP16, resume=True)
    assert run.steps == 2 * STEPS_PER_EPOCH
    assert STEPS_PER_EPOCH < run.skipped_steps == unchanged.count < run.steps
    assert all(weight.isfinite().all() for weight in workspace.weights("overflow").values())
    skipped = f"{run.skipped_steps} of 14 steps skipped: their gradients overflowed in fp16"
    assert any(note.startswith(skipped) for note in run.notes)
    assert f"14 步中有 {run.skipped_steps} 步被跳过" in write_report(
        [workspace.folder / "overflow"], language="zh"
    ).read_text("utf-8")
