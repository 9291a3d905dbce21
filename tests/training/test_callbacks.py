"""When checkpoints are written between epochs, and how a run ends that is told to stop."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from stress.fixtures import Ground, ending_of, in_child, same_bits

from tightfit.errors import BadInput, Stopped
from tightfit.training.callbacks import SaveAndStop, SaveInterval
from tightfit.training.checkpoints import latest_checkpoint


@pytest.mark.parametrize(
    ("text", "number", "unit"),
    [("100 steps", 100, "steps"), ("1 step", 1, "steps"), ("30 minutes", 30, "minutes"), ("0.5min", 0.5, "minutes")],
)
def test_intervals(text: str, number: float, unit: str) -> None:
    assert SaveInterval.parse(text) == SaveInterval(number, unit)


@pytest.mark.parametrize(
    "text", ["", "often", "0 steps", "-1 steps", "2.5 steps", "10", "5 hours", f"{'9' * 400} steps"]
)
def test_what_is_no_interval(text: str) -> None:
    with pytest.raises(BadInput, match="write '100 steps' or '30 minutes'"):
        SaveInterval.parse(text)


def test_when_it_is_due() -> None:
    assert [step for step in range(1, 8) if SaveInterval(3, "steps").is_due(step, 0.0)] == [3, 6]
    assert not SaveInterval(1, "minutes").is_due(1, time.monotonic() - 59)
    assert SaveInterval(1, "minutes").is_due(1, time.monotonic() - 61)


def test_a_frozen_part_that_runs_is_stopped_between_its_batches() -> None:
    said: list[str] = []
    pauses = SaveAndStop(SaveInterval(1, "steps"), said.append)
    pauses.on_features()
    pauses._hear(signal.SIGTERM, None)
    with pytest.raises(Stopped, match="train --resume goes on") as stopped:
        pauses.on_features()
    assert stopped.value.exit_code == 143
    assert len(said) == 1


def test_when_all_is_trained_no_other_checkpoint_is_promised() -> None:
    said: list[str] = []
    pauses = SaveAndStop(SaveInterval(1, "steps"), said.append)
    pauses.on_train_end(None, None, None)
    pauses._hear(signal.SIGINT, None)
    assert said == ["the training is over: its model is being written. Ctrl-C again leaves at once."]


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    ground = Ground(tmp_path_factory.mktemp("stopped") / "ground")
    ground.train("whole", epochs=3)
    return ground


def train_in_child(ground: Ground, out: str, seconds_per_step: float = 0.2) -> int:
    """A child that trains slowly enough to be stopped, and ends as the command line does."""
    from tightfit.training import trainer

    take = trainer.Trainer.training_step

    def slow(self: trainer.Trainer, *args: object) -> object:
        time.sleep(seconds_per_step)
        return take(self, *args)

    def work() -> int:
        trainer.Trainer.training_step = slow
        try:
            ground.train(out, epochs=3)
        except Stopped as stopped:
            (ground.folder / f"{out}.said").write_text(str(stopped))
            return stopped.exit_code
        except KeyboardInterrupt:
            return 130
        return 0

    return in_child(work, ground.folder / f"{out}.log")


def wait_for_training(folder: Path) -> None:
    end = time.monotonic() + 60
    while latest_checkpoint(folder) is None and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(1.0)  # pre-flight and a step


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stopped_run_writes_a_checkpoint_first(ground: Ground, number: signal.Signals, code: int) -> None:
    out = f"stopped-{code}"
    child = train_in_child(ground, out)
    wait_for_training(ground.folder / out)
    os.kill(child, number)
    assert ending_of(child) == code
    last = latest_checkpoint(ground.folder / out)
    assert last is not None
    said = (ground.folder / f"{out}.said").read_text()
    assert f"{last.name} is written, and train --resume goes on" in said
    assert not (ground.folder / out / "run.json").exists()
    ground.train(out, epochs=3, resume=True)
    assert same_bits(ground.weights(out), ground.weights("whole"))


def test_a_second_ctrl_c_leaves_at_once(ground: Ground) -> None:
    child = train_in_child(ground, "hurry", seconds_per_step=60)
    wait_for_training(ground.folder / "hurry")
    os.kill(child, signal.SIGINT)
    time.sleep(0.5)
    os.kill(child, signal.SIGINT)
    assert ending_of(child) == 130
    assert not (ground.folder / "hurry.said").exists()


def test_saving_often_changes_no_bit(ground: Ground) -> None:
    ground.train("often", epochs=3, save_every="2 steps")
    assert same_bits(ground.weights("often"), ground.weights("whole"))
    assert len(list((ground.folder / "often").glob("checkpoint-*"))) == 2
