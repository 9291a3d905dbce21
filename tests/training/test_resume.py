"""Runs that were stopped and go on: to the same bits with every recipe, with their own recipe, and flown again."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml
from small_machine import SmallMachine
from stress.bad_inputs import call
from stress.fixtures import Ground, losses, same_bits

from tightfit import Run, load_run
from tightfit.errors import BadInput, PreflightFailed, Stopped
from tightfit.job import read_job_file
from tightfit.planning.plan_file import VERSION
from tightfit.training import trainer


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return Ground(tmp_path_factory.mktemp("resumed") / "ground")


def stop(ground: Ground, out: str, use: list[str] | None = None, *, in_step: int = 4, **settings: Any) -> None:
    """Train until SIGTERM comes in the middle of an epoch."""
    take = trainer.Trainer.training_step

    def stopped(self: trainer.Trainer, *args: object) -> object:
        if self.state.global_step == in_step:
            os.kill(os.getpid(), signal.SIGTERM)
        return take(self, *args)

    with mock.patch.object(trainer.Trainer, "training_step", stopped), pytest.raises(Stopped):
        ground.train(out, use, **settings)


RECIPES = {
    "adapter": ["lora:dropout=0.1", "micro-batch:size=3"],
    "adapter beside": ["lora:merge=false", "gradient-checkpointing"],
    "length-bucketing": ["length-bucketing", "micro-batch:size=3"],
    "frozen": ["freeze"],
    "frozen, run every time": ["freeze:cache=false", "micro-batch:size=3"],
    "in backward": ["chunked-layers:size=4", "adamw", "optimizer-in-backward"],
    "16 bit in backward": ["chunked-layers:size=4", "adamw-16bit", "optimizer-in-backward"],
    "16 bit": ["adamw-16bit", "tiled-attention"],
    "mixed": ["mixed-precision", "adafactor"],
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_stopped_run_goes_on_to_the_same_bits(ground: Ground, recipe: str) -> None:
    """Dropout on, and a pre-flight before going on as well as before the beginning."""
    whole, stopped = f"{recipe} whole", f"{recipe} stopped"
    expected = ground.train(whole, RECIPES[recipe])
    stop(ground, stopped, RECIPES[recipe])
    found = ground.train(stopped, RECIPES[recipe], resume=True)
    assert losses(found) == losses(expected)
    assert found.steps == expected.steps
    assert same_bits(ground.weights(stopped), ground.weights(whole))


def test_a_resumed_run_is_flown_too(ground: Ground) -> None:
    """On a machine with less memory: smaller slices from the first step on, or a sentence at once."""
    stop(ground, "moved")
    with SmallMachine(rows=0).training_on() as machine:
        with pytest.raises(PreflightFailed, match="a single text of"):
            ground.train("moved", resume=True)
        machine.rows = 3
        run = ground.train("moved", resume=True)
    assert run.steps == 14
    assert next(note for note in run.notes if "out of memory" in note).startswith("out of memory in step 6 ")


def test_a_finished_run_that_goes_on_and_is_stopped_is_not_called_finished(ground: Ground) -> None:
    ground.train("longer", epochs=1)
    stop(ground, "longer", in_step=9, epochs=2, resume=True)
    assert load_run(ground.folder / "longer").steps == 7, "the record of what is finished stays"
    run = ground.train("longer", epochs=2, resume=True)
    assert run.steps == 14
    assert ground.train("longer", epochs=2, resume=True).steps == 14


def test_what_is_trained_cannot_be_taken_back(ground: Ground) -> None:
    stop(ground, "shorter", in_step=9)
    with pytest.raises(BadInput, match="checkpoint-10 is of step 10 and this training has 7: give more --epochs"):
        ground.train("shorter", epochs=1, resume=True)
    assert ground.train("shorter", max_steps=10, resume=True).steps == 10


def test_a_folder_without_a_run_is_named_before_a_model_is_asked_for(tmp_path: Path) -> None:
    answer = call(["train", "--out", tmp_path / "nowhere", "--resume"])
    assert answer.is_a_sentence
    assert "There is no run in" in answer.err


def test_how_a_step_is_carried_out_may_change(ground: Ground) -> None:
    stop(ground, "changed", ["micro-batch:size=4"])
    run = ground.train("changed", ["micro-batch:size=2", "gradient-checkpointing"], resume=True)
    assert run.recipe == ["micro-batch:size=2", "gradient-checkpointing"]
    stop(ground, "changed optimizer")
    with pytest.raises(BadInput, match="was 'plain' and is 'adafactor'"):
        ground.train("changed optimizer", ["adafactor"], resume=True)


OWN = ["micro-batch:size=2", "adafactor"]


@pytest.fixture(scope="module")
def planned(ground: Ground) -> str:
    """A run whose plan was given up for another recipe, and that was then stopped."""
    stop(ground, "planned", OWN)
    return "planned"


@pytest.mark.parametrize("pinned", [[], ["adafactor"]])
def test_under_a_budget_a_run_keeps_its_own_recipe(ground: Ground, planned: str, pinned: list[str]) -> None:
    run = ground.train(_copy(ground, planned, f"pinned {len(pinned)}"), pinned, budget="64GB", resume=True)
    assert run.recipe == OWN


def test_what_was_pinned_has_to_be_in_it(ground: Ground, planned: str) -> None:
    with pytest.raises(BadInput, match="the recipe was 'micro-batch:size=2 adafactor' and is 'freeze'"):
        ground.train(planned, ["freeze"], budget="64GB", resume=True)


def test_a_plan_that_was_given_up_is_not_returned_to(ground: Ground, planned: str) -> None:
    """`train plan.yaml --out run --resume`, where the run had planned again."""
    out = ground.folder / _copy(ground, planned, "from plan")
    values, _ = read_job_file(out / "job.yaml")
    note = {
        "version": VERSION,
        "budget": "64GB",
        "device": "cpu",
        "peak_bytes": 1,
        "seconds_per_epoch": 1.0,
        "result": "same",
    }
    content = {name.replace("_", "-"): value for name, value in values.items()}
    (ground.folder / "plan.yaml").write_text(yaml.safe_dump({**content, "use": ["micro-batch:size=4"], "plan": note}))
    answer = call(["train", ground.folder / "plan.yaml", "--out", out, "--resume", "--device", "cpu"])
    assert answer.code == 0, answer.err
    assert "going on with the run's own recipe: micro-batch:size=2 adafactor" in answer.err
    run: Run = load_run(out)
    assert (run.recipe, run.steps) == (OWN, 14)


def _copy(ground: Ground, run: str, name: str) -> str:
    shutil.copytree(ground.folder / run, ground.folder / name)
    return name


def test_a_batch_of_more_rows_than_there_are_is_said(ground: Ground) -> None:
    """Every step takes all rows, also where rows of like length meet; and it is resumed as it was given."""
    largest = 10**9
    stop(ground, "large", ["length-bucketing", "micro-batch:size=8"], batch_size=largest, epochs=3, in_step=1)
    run = ground.train("large", ["length-bucketing", "micro-batch:size=8"], batch_size=largest, epochs=3, resume=True)
    assert run.steps == 3
    assert run.job.batch_size == largest
    assert "batches of 1,000,000,000 are more than the 54 training rows: every step takes all of them" in run.notes


def test_a_training_without_end_begins(ground: Ground) -> None:
    stop(ground, "endless", max_steps=10**9)
    assert (ground.folder / "endless" / "checkpoint-5" / "manifest.json").is_file()


def test_paths_are_not_left_behind(ground: Ground) -> None:
    """A folder that was moved is gone on with where it is now."""
    stop(ground, "here")
    (ground.folder / "here").rename(ground.folder / "there")
    run = ground.train("there", resume=True)
    assert Path(run.folder) == ground.folder / "there"
