"""Checkpoints within an epoch, and runs that are stopped by a signal."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from stress.fixtures import Workspace, same_bits, start_child, wait_for

from tightfit.errors import BadInput, Interrupted
from tightfit.training.checkpoints import latest_checkpoint
from tightfit.training.signals import SaveAndStop, SaveInterval


@pytest.mark.parametrize(
    ("text", "number", "unit"),
    [("100 steps", 100, "steps"), ("1 step", 1, "steps"), ("30 minutes", 30, "minutes"), ("0.5min", 0.5, "minutes")],
)
def test_save_intervals_are_parsed(text: str, number: float, unit: str) -> None:
    assert SaveInterval.parse(text) == SaveInterval(number, unit)


@pytest.mark.parametrize(
    "text", ["", "often", "0 steps", "-1 steps", "2.5 steps", "10", "5 hours", f"{'9' * 400} steps"]
)
def test_invalid_save_intervals_are_rejected(text: str) -> None:
    with pytest.raises(BadInput, match="write '100 steps' or '30 minutes'"):
        SaveInterval.parse(text)


def test_a_checkpoint_is_due_after_the_interval() -> None:
    assert [step for step in range(1, 8) if SaveInterval(3, "steps").is_due(step, 0.0)] == [3, 6]
    assert not SaveInterval(1, "minutes").is_due(1, time.monotonic() - 59)
    assert SaveInterval(1, "minutes").is_due(1, time.monotonic() - 61)


def test_a_signal_stops_the_feature_cache_between_batches(tmp_path: Path) -> None:
    messages: list[str] = []
    save_and_stop = SaveAndStop(tmp_path / "run", SaveInterval(1, "steps"), messages.append)
    save_and_stop.raise_if_stopped()
    save_and_stop._on_signal(signal.SIGTERM, None)
    with pytest.raises(Interrupted, match=r"Continue with: tightfit train --out .*/run --resume") as stopped:
        save_and_stop.raise_if_stopped()
    assert stopped.value.exit_code == 143
    assert len(messages) == 1


def test_after_the_last_step_a_signal_promises_no_further_checkpoint(tmp_path: Path) -> None:
    messages: list[str] = []
    save_and_stop = SaveAndStop(tmp_path / "run", SaveInterval(1, "steps"), messages.append)
    save_and_stop.on_train_end(None, None, None)
    save_and_stop._on_signal(signal.SIGINT, None)
    assert messages == ["training has finished: the model is being written. Press Ctrl-C again to exit immediately."]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    workspace = Workspace(tmp_path_factory.mktemp("stopped") / "workspace")
    workspace.train("uninterrupted", epochs=3)
    return workspace


def train_in_child(workspace: Workspace, out: str, seconds_per_step: float = 0.2) -> int:
    """Train in a child, slowly enough to be stopped; it exits as the command line does."""
    from tightfit.training import trainer

    take = trainer.Trainer.training_step

    def slow(self: trainer.Trainer, *args: object) -> object:
        time.sleep(seconds_per_step)
        return take(self, *args)

    def work() -> int:
        trainer.Trainer.training_step = slow
        try:
            workspace.train(out, epochs=3)
        except Interrupted as stopped:
            (workspace.folder / f"{out}.message").write_text(str(stopped))
            return stopped.exit_code
        return 0

    return start_child(work, workspace.folder / f"{out}.log")


def wait_for_training(folder: Path) -> None:
    end = time.monotonic() + 60
    while latest_checkpoint(folder) is None and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(1.0)  # pre-flight and a step


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_writes_a_checkpoint_before_the_run_stops(
    workspace: Workspace, number: signal.Signals, code: int
) -> None:
    out = f"stopped-{code}"
    child = train_in_child(workspace, out)
    wait_for_training(workspace.folder / out)
    os.kill(child, number)
    assert wait_for(child) == code
    last = latest_checkpoint(workspace.folder / out)
    assert last is not None
    messages = (workspace.folder / f"{out}.message").read_text()
    folder = workspace.folder / out
    assert f"{last.name} is written. Continue with: tightfit train --out {folder} --resume" in messages
    assert not (workspace.folder / out / "run.json").exists()
    workspace.train(out, epochs=3, resume=True)
    assert same_bits(workspace.weights(out), workspace.weights("uninterrupted"))


def test_a_second_ctrl_c_exits_immediately(workspace: Workspace) -> None:
    child = train_in_child(workspace, "impatient", seconds_per_step=60)
    wait_for_training(workspace.folder / "impatient")
    os.kill(child, signal.SIGINT)
    time.sleep(0.5)
    os.kill(child, signal.SIGINT)
    assert wait_for(child) == 130
    folder = workspace.folder / "impatient"
    assert [path.name for path in folder.glob("checkpoint-*")] == ["checkpoint-0"]
    message = (workspace.folder / "impatient.message").read_text()
    assert message == f"stopped. Continue with: tightfit train --out {folder} --resume"


@pytest.mark.slow
def test_frequent_checkpoints_do_not_change_the_weights(workspace: Workspace) -> None:
    workspace.train("often", epochs=3, save_every="2 steps")
    assert same_bits(workspace.weights("often"), workspace.weights("uninterrupted"))
    assert len(list((workspace.folder / "often").glob("checkpoint-*"))) == 2
