"""Resumed runs: bit-identical with every recipe, with their own recipe, and with a pre-flight."""

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
from stress.fixtures import Workspace, losses, same_bits

from tightfit import Run, load_run
from tightfit.errors import BadInput, Interrupted, PreflightFailed
from tightfit.job import read_job_file
from tightfit.planning.plan_file import VERSION
from tightfit.training import trainer


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("resumed") / "workspace")


def stop(workspace: Workspace, out: str, use: list[str] | None = None, *, in_step: int = 4, **settings: Any) -> None:
    """Train until a SIGTERM in the middle of an epoch."""
    take = trainer.Trainer.training_step

    def stopped(self: trainer.Trainer, *args: object) -> object:
        if self.state.global_step == in_step:
            os.kill(os.getpid(), signal.SIGTERM)
        return take(self, *args)

    with mock.patch.object(trainer.Trainer, "training_step", stopped), pytest.raises(Interrupted):
        workspace.train(out, use, **settings)


RECIPES = {
    "merged lora": ["lora:dropout=0.1", "micro-batch:size=3"],
    "unmerged lora": ["lora:merge=false", "gradient-checkpointing"],
    "length bucketing": ["length-bucketing", "micro-batch:size=3"],
    "cached features": ["freeze"],
    "frozen without cache": ["freeze:cache=false", "micro-batch:size=3"],
    "optimizer in backward": ["chunked-layers:size=4", "adamw", "optimizer-in-backward"],
    "16-bit optimizer in backward": ["chunked-layers:size=4", "adamw-16bit", "optimizer-in-backward"],
    "16-bit optimizer": ["adamw-16bit", "tiled-attention"],
    "mixed precision": ["mixed-precision", "adafactor"],
}


FAST = ("length bucketing", "16-bit optimizer in backward")


@pytest.mark.parametrize("recipe", [r if r in FAST else pytest.param(r, marks=pytest.mark.slow) for r in RECIPES])
def test_a_resumed_run_is_bit_identical_to_an_uninterrupted_one(workspace: Workspace, recipe: str) -> None:
    """Dropout on, and a pre-flight after the resume as well as before the first step."""
    uninterrupted, stopped = f"{recipe} uninterrupted", f"{recipe} stopped"
    expected = workspace.train(uninterrupted, RECIPES[recipe])
    stop(workspace, stopped, RECIPES[recipe])
    found = workspace.train(stopped, RECIPES[recipe], resume=True)
    assert losses(found) == losses(expected)
    assert found.steps == expected.steps
    assert same_bits(workspace.weights(stopped), workspace.weights(uninterrupted))


def test_a_resumed_run_has_a_preflight(workspace: Workspace) -> None:
    """On a machine with less memory it uses smaller micro-batches from the first step on, or fails before it."""
    stop(workspace, "moved")
    with SmallMachine(rows=0).limited() as machine:
        with pytest.raises(PreflightFailed, match="a single text of"):
            workspace.train("moved", resume=True)
        machine.rows = 3
        run = workspace.train("moved", resume=True)
    assert run.steps == 14
    assert next(note for note in run.notes if "out of memory" in note).startswith("out of memory in step 6 ")


def test_a_finished_run_that_continues_and_is_stopped_is_not_finished(workspace: Workspace) -> None:
    workspace.train("longer", epochs=1)
    stop(workspace, "longer", in_step=9, epochs=2, resume=True)
    assert load_run(workspace.folder / "longer").steps == 7, "the old record stays until the run has finished again"
    run = workspace.train("longer", epochs=2, resume=True)
    assert run.steps == 14
    assert workspace.train("longer", epochs=2, resume=True).steps == 14


def test_a_resumed_run_cannot_have_fewer_steps_than_its_checkpoint(workspace: Workspace) -> None:
    stop(workspace, "shorter", in_step=9)
    with pytest.raises(BadInput, match="checkpoint-10 is at step 10 and this run has only 7 steps: give more --epochs"):
        workspace.train("shorter", epochs=1, resume=True)
    assert workspace.train("shorter", max_steps=10, resume=True).steps == 10


def test_resuming_a_missing_run_is_rejected_before_the_model_is_required(tmp_path: Path) -> None:
    result = call(["train", "--out", tmp_path / "nowhere", "--resume"])
    assert result.is_clean_error
    assert "There is no run to resume in" in result.err


def test_a_resumed_run_may_change_strategies_that_keep_the_result(workspace: Workspace) -> None:
    stop(workspace, "changed", ["micro-batch:size=4"])
    run = workspace.train("changed", ["micro-batch:size=2", "gradient-checkpointing"], resume=True)
    assert run.recipe == ["micro-batch:size=2", "gradient-checkpointing"]
    stop(workspace, "changed optimizer")
    with pytest.raises(BadInput, match="was 'baseline' and is 'adafactor'"):
        workspace.train("changed optimizer", ["adafactor"], resume=True)


OWN = ["micro-batch:size=2", "adafactor"]


@pytest.fixture(scope="module")
def planned(workspace: Workspace) -> str:
    """A run whose plan was replaced by another recipe, and that was then stopped."""
    stop(workspace, "planned", OWN)
    return "planned"


@pytest.mark.parametrize("pinned", [[], ["adafactor"]])
def test_under_a_budget_a_resumed_run_keeps_its_own_recipe(
    workspace: Workspace, planned: str, pinned: list[str]
) -> None:
    run = workspace.train(_copy(workspace, planned, f"pinned {len(pinned)}"), pinned, budget="64GB", resume=True)
    assert run.recipe == OWN


def test_a_resumed_run_rejects_a_given_strategy_that_its_recipe_lacks(workspace: Workspace, planned: str) -> None:
    with pytest.raises(BadInput, match="the recipe was 'micro-batch:size=2 adafactor' and is 'freeze'"):
        workspace.train(planned, ["freeze"], budget="64GB", resume=True)


def test_a_replaced_plan_is_not_used_on_resume(workspace: Workspace, planned: str) -> None:
    """`train plan.yaml --out run --resume`, where the run had planned again."""
    out = workspace.folder / _copy(workspace, planned, "from plan")
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
    (workspace.folder / "plan.yaml").write_text(
        yaml.safe_dump({**content, "use": ["micro-batch:size=4"], "plan": note})
    )
    result = call(["train", workspace.folder / "plan.yaml", "--out", out, "--resume", "--device", "cpu"])
    assert result.code == 0, result.err
    assert "continuing with the run's own recipe: micro-batch:size=2 adafactor" in result.err
    run: Run = load_run(out)
    assert (run.recipe, run.steps) == (OWN, 14)


def _copy(workspace: Workspace, run: str, name: str) -> str:
    shutil.copytree(workspace.folder / run, workspace.folder / name)
    return name


def test_a_batch_size_larger_than_the_data_is_noted(workspace: Workspace) -> None:
    """Every step uses all rows, also with length buckets; the run resumes with the batch size as given."""
    largest = 10**9
    stop(workspace, "large", ["length-bucketing", "micro-batch:size=8"], batch_size=largest, epochs=3, in_step=1)
    run = workspace.train(
        "large", ["length-bucketing", "micro-batch:size=8"], batch_size=largest, epochs=3, resume=True
    )
    assert run.steps == 3
    assert run.job.batch_size == largest
    assert "the batch size 1,000,000,000 is larger than the 54 training rows: every step uses all of them" in run.notes


def test_a_training_with_a_billion_steps_starts(workspace: Workspace) -> None:
    stop(workspace, "endless", max_steps=10**9)
    assert (workspace.folder / "endless" / "checkpoint-5" / "manifest.json").is_file()


def test_a_moved_run_resumes_in_its_new_folder(workspace: Workspace) -> None:
    stop(workspace, "here")
    (workspace.folder / "here").rename(workspace.folder / "there")
    run = workspace.train("there", resume=True)
    assert Path(run.folder) == workspace.folder / "there"


def test_more_epochs_say_what_happens_to_the_learning_rate(workspace: Workspace) -> None:
    """The rates in the line are those of the last step before and of the first step after it."""
    workspace.train("short", epochs=1)
    run = workspace.train("short", epochs=3, resume=True)
    assert "continuing from checkpoint-7: 7 of 21 steps are done" in run.notes
    assert (
        "the learning rate falls linearly to 0 at the last step, which is now 21 and was 7: "
        "it continues at 0.00067, and was 0 at step 7"
    ) in run.notes
    rates = {entry["step"]: entry["learning_rate"] for entry in run.history if "learning_rate" in entry}
    assert rates[8] == pytest.approx(1e-3 * 14 / 21)


def test_a_run_resumed_as_it_was_keeps_its_learning_rate_without_a_word(workspace: Workspace) -> None:
    stop(workspace, "unchanged")
    run = workspace.train("unchanged", resume=True)
    assert not any("learning rate" in note for note in run.notes)
    assert any(note.startswith("continuing from checkpoint-") for note in run.notes)
