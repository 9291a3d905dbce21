"""plan, train --budget and --export as a user calls them, on a tiny model."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tightfit import Budget, DoesNotFit, Job, Plan, plan, train
from tightfit.data.rows import Columns
from tightfit.errors import BadInput, PreflightFailed
from tightfit.planning.export import columns_of, unexportable_reason
from tightfit.planning.select import Selector
from tightfit.runs.record import load_run
from tightfit.strategies.recipe import Recipe
from tightfit.training import run as training_run
from tightfit.training import trainer
from tightfit.units import parse_bytes


@pytest.fixture(autouse=True)
def _own_rates(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    from plans import RATES

    from tightfit.timing import calibrate

    monkeypatch.setattr(calibrate, "cpu_rates", lambda: RATES)


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
    assert "--budget" in told["suggestions"][0]
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
    assert run.recipe == made.recipe.specs


def test_a_plan_that_no_longer_fits_is_made_again(tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    job, size = job_of(tiny_model, reviews), "2GB"
    run = train(job, out=tmp_path / "a", device="cpu", budget=size, planned=["adafactor"], quiet=True)
    assert run.recipe == ["adafactor"]
    with pytest.raises(DoesNotFit):
        train(job, out=tmp_path / "b", device="cpu", budget="20MB", planned=["adafactor"], quiet=True)


def test_a_plan_for_a_card_is_made_again_on_a_processor_as_it_was_wished(
    tiny_model: Path, reviews: Path, tmp_path: Path
) -> None:
    words = ("--model", tiny_model, "--data", reviews, "--max-length", 32, "--budget", "3GB")
    done = call("plan", *words, "--device", "T4", "--use", "offload-optimizer", "--out", tmp_path / "plan.yaml")
    assert done.returncode == 0, done.stderr
    file = tmp_path / "plan.yaml"
    note = yaml.safe_load(file.read_text())["plan"]
    assert (note["device"], note["use"]) == ("T4 16GB", ["offload-optimizer"])
    file.write_text(file.read_text().replace("  use:\n  - offload-optimizer\n", "  use:\n  - micro-batch:size=2\n"))
    done = call("train", file, "--out", tmp_path / "run", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert "the plan cannot be carried out here" in done.stderr
    assert "micro-batch:size=2" in load_run(tmp_path / "run").recipe


def test_the_command_lines_wishes_plan_again_inside_the_plans_budget(
    tiny_model: Path, reviews: Path, tmp_path: Path
) -> None:
    file, words = tmp_path / "plan.yaml", ("--model", tiny_model, "--data", reviews, "--max-length", 32)
    assert call("plan", *words, "--budget", "3GB", "--out", file).returncode == 0
    done = call("train", file, "--use", "micro-batch:size=2", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "3.00 GiB" in done.stderr
    assert "micro-batch:size=2" in load_run(tmp_path / "run").recipe
    done = call("plan", file, "--budget", "2GB", "--avoid", "tiled-attention", "--json")
    assert done.returncode == 0, done.stderr
    again = json.loads(done.stdout)
    assert again["budget_bytes"] == 2 << 30
    assert not any(word.startswith("tiled-attention") for word in again["recipe"])


def test_the_batch_stays_what_was_asked_for_however_few_rows_there_are(tiny_model: Path, reviews: Path) -> None:
    job = job_of(tiny_model, reviews).model_copy(update={"batch_size": 4096})
    assert plan(job, "3GB", device="cpu").job.batch_size == 4096


@pytest.fixture
def failing_flights(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first pre-flight fails, later ones are flown."""
    flights: list[int] = []
    run_preflight = trainer.run_preflight

    def first_fails(running: Any, worst: Any) -> float:
        flights.append(len(worst.train))
        if len(flights) == 1:
            raise PreflightFailed("There is not enough memory.")
        return run_preflight(running, worst)

    monkeypatch.setattr(trainer, "fly", first_fails)
    return flights


def test_a_recipe_that_does_not_fly_is_followed_by_another(
    tiny_model: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing_flights: list[int]
) -> None:
    """Both held to the budget. Which one is next is told here: tiny recipes differ by less than a tenth."""
    budgets: list[int | None] = []

    def limit_memory(device: Any, say: Any, budget: int | None = None) -> Any:
        budgets.append(budget)
        return contextlib.nullcontext()

    smaller = Recipe.parse(["adafactor", "micro-batch:size=2"])
    monkeypatch.setattr(training_run, "limit_memory", limit_memory)
    monkeypatch.setattr(Selector, "below", lambda self, kept: replace(self, planned=smaller))
    run = train(job_of(tiny_model, reviews), out=tmp_path / "run", device="cpu", budget="2GB", quiet=True)
    assert budgets == [2 << 30, 2 << 30]
    assert len(failing_flights) == 2
    assert run.recipe == smaller.specs
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
    done = call("plan", *words, "--use", "micro-batch:size=4", "--use", "gradient-checkpointing", "--export", script)
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
    done = call("plan", *words, "--use", "optimizer-in-backward", "--export", script)
    assert done.returncode == 0, done.stderr
    assert "optimizer-in-backward is tightfit's" in script.read_text()
    assert 'budget="3072MB"' in script.read_text()
    compile(script.read_text(), str(script), "exec")


@pytest.mark.parametrize(
    ("rows", "validation", "said"),
    [
        ("premise,hypothesis,label\na,b,c\n", False, "Training on pairs is tightfit's to do."),
        ("text,label\na,b\n", True, "Validating on another file is tightfit's to do."),
        ("content,sentiment\na,b\n", False, None),
    ],
)
def test_data_that_a_plain_script_could_not_read_is_left_to_us(
    tmp_path: Path, rows: str, validation: bool, said: str | None
) -> None:
    data = tmp_path / "rows.csv"
    data.write_text(rows)
    job = Job(model="m", data=str(data), validation=str(data) if validation else None)
    made: Any = SimpleNamespace(job=job, recipe=Recipe())
    assert unexportable_reason(made) == said
    if said is None:
        assert columns_of(job) == Columns(("content",), "sentiment")


@pytest.mark.parametrize("word", ["freeze:pattern=*.attention.*", "freeze:embeddings=true"])
def test_what_a_plain_script_would_freeze_otherwise_is_left_to_us(word: str) -> None:
    made: Any = SimpleNamespace(job=Job(model="m", data="none"), recipe=Recipe.parse([word]))
    assert unexportable_reason(made) == f"{word} is tightfit's to do."


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--budget", "4gigs"], "'4gigs' is not a size of memory: write it like 4GB."),
        (["--budget", "lots"], "write it like 4GB, 3.5GB or 512MB."),
        (["--budget", "2GB", "--out", "plan.txt"], "should end in .yaml"),
        (["--budget", "2GB", "--export", "plan.yaml"], "should end in .py"),
        (["--budget", "2GB", "--allow", "anything"], "is not an effect on the result"),
        (["--budget", "2GB", "--avoid", "micro-batches"], "did you mean 'micro-batch'"),
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
