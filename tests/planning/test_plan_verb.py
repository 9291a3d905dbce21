"""plan, train --budget and --export as a user calls them, on a tiny model."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tightfit import Budget, DoesNotFit, Job, Plan, plan, train, trainer, training
from tightfit.errors import BadInput, PreflightFailed
from tightfit.planning.keeping import Keeping
from tightfit.recipe import Recipe
from tightfit.units import parse_bytes


@pytest.fixture(autouse=True)
def _own_rates(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    from plans import RATES

    from tightfit.clock import measured

    monkeypatch.setattr(measured, "rates_of_this_machine", lambda: RATES)


def call(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tightfit", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True)


def job_of(model: Path, data: Path, **more: Any) -> Job:
    return Job(model=str(model), data=str(data), batch_size=8, max_length=32, **more)


def test_a_plan_is_written_and_trained(tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "plan.yaml", tmp_path / "run"
    done = call("plan", "--model", tiny_model, "--data", reviews, "--max-length", 32, "--budget", "3GB", "--out", file)
    assert done.returncode == 0, done.stderr
    assert "It fits 3.00 GiB" in done.stdout
    done = call("train", file, "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["measured"]["peak_bytes"] < 3 << 30
    assert record["predicted"]["seconds_per_step"] > 0
    assert record["recipe"]


def test_what_does_not_fit_ends_with_1_and_says_the_floor(tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    words = ("--model", tiny_model, "--data", reviews, "--max-length", 32, "--budget", "50MB")
    done = call("plan", *words, "--json", "--out", tmp_path / "plan.yaml")
    told = json.loads(done.stdout)
    assert done.returncode == 1
    assert told["fits"] is False
    assert told["peak_bytes"] > told["budget_bytes"]
    assert "--budget" in told["ways_out"][0]
    assert not (tmp_path / "plan.yaml").exists()
    done = call("train", *words, "--out", tmp_path / "run")
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("tightfit: No recipe fits 50.0 MiB")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_in_python(tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    made = plan(job_of(tiny_model, reviews), "2GB", device="cpu")
    assert isinstance(made, Plan)
    assert made.fits
    with pytest.raises(DoesNotFit) as error:
        plan(job_of(tiny_model, reviews), "10MB", device="cpu")
    assert error.value.plan.chosen.at_most > 10 << 20
    run = train(job_of(tiny_model, reviews), out=tmp_path / "run", device="cpu", budget="2GB", quiet=True)
    assert run.recipe == made.recipe.words


def test_a_plan_that_no_longer_fits_is_made_again(tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    job, size = job_of(tiny_model, reviews), "2GB"
    run = train(job, ["adafactor"], out=tmp_path / "a", device="cpu", budget=size, planned=True, quiet=True)
    assert run.recipe == ["adafactor"]
    with pytest.raises(DoesNotFit):
        train(job, ["adafactor"], out=tmp_path / "b", device="cpu", budget="20MB", planned=True, quiet=True)


@pytest.fixture
def failing_flights(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first pre-flight fails, later ones are flown."""
    flights: list[int] = []
    fly = trainer.fly

    def first_fails(running: Any, worst: Any) -> float:
        flights.append(len(worst.train))
        if len(flights) == 1:
            raise PreflightFailed("There is not enough memory.")
        return fly(running, worst)

    monkeypatch.setattr(trainer, "fly", first_fails)
    return flights


def test_a_recipe_that_does_not_fly_is_followed_by_another(
    tiny_model: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing_flights: list[int]
) -> None:
    """Both held to the budget. Which one is next is told here: tiny recipes differ by less than a tenth."""
    budgets: list[int | None] = []

    def guarded(device: Any, say: Any, budget: int | None = None) -> Any:
        budgets.append(budget)
        return contextlib.nullcontext()

    smaller = Recipe.parse(["adafactor", "slice:size=2"])
    monkeypatch.setattr(training, "guarded", guarded)
    monkeypatch.setattr(Keeping, "below", lambda self, kept: replace(self, planned=smaller))
    run = train(job_of(tiny_model, reviews), out=tmp_path / "run", device="cpu", budget="2GB", quiet=True)
    assert budgets == [2 << 30, 2 << 30]
    assert len(failing_flights) == 2
    assert run.recipe == smaller.words
    assert any(note.endswith("(There is not enough memory.): planned again") for note in run.notes)


def test_where_no_smaller_recipe_is_left_the_first_failure_is_said(
    tiny_model: Path, reviews: Path, tmp_path: Path, failing_flights: list[int]
) -> None:
    with pytest.raises(PreflightFailed, match=r"^There is not enough memory\.$"):
        train(job_of(tiny_model, reviews), out=tmp_path / "run", device="cpu", budget="2GB", quiet=True)
    assert len(failing_flights) == 1
    assert not (tmp_path / "run").exists()


def test_an_exported_script_runs_without_tightfit(tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    words = ("--model", tiny_model, "--data", reviews, "--max-length", 32, "--batch-size", 8, "--budget", "3GB")
    done = call("plan", *words, "--use", "slice:size=4", "--use", "checkpoint", "--export", script)
    assert done.returncode == 0, done.stderr
    text = script.read_text()
    assert "import tightfit" not in text
    assert "from tightfit" not in text
    assert "per_device_train_batch_size=4" in text
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, env=os.environ)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "out" / "model" / "config.json").is_file()


def test_a_script_of_our_own_strategies_calls_us_and_says_why(tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    words = ("--model", tiny_model, "--data", reviews, "--max-length", 32, "--budget", "3GB")
    done = call("plan", *words, "--use", "step-in-backward", "--export", script)
    assert done.returncode == 0, done.stderr
    assert "step-in-backward is tightfit's" in script.read_text()
    compile(script.read_text(), str(script), "exec")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--budget", "4gigs"], "'4gigs' is not a size of memory: write it like 4GB."),
        (["--budget", "lots"], "write it like 4GB, 3.5GB or 512MB."),
        (["--budget", "2GB", "--out", "plan.txt"], "should end in .yaml"),
        (["--budget", "2GB", "--export", "plan.yaml"], "should end in .py"),
        (["--budget", "2GB", "--allow", "anything"], "is not an effect on the result"),
        (["--budget", "2GB", "--avoid", "slices"], "did you mean 'slice'"),
        (["--budget", "2GB", "--device", "RTX 9999"], "There is no device"),
    ],
)
def test_bad_input(words: list[str], said: str, tiny_model: Path, reviews: Path) -> None:
    done = call("plan", "--model", tiny_model, "--data", reviews, *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_budget_above_the_machine_is_said() -> None:
    budget = Budget.of("900TB", "cpu")
    assert budget.note is not None
    assert "more than" in budget.note
    assert Budget.of("1GB", "T4").note is None
    with pytest.raises(BadInput):
        parse_bytes("-1GB")
