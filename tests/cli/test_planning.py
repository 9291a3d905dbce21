"""plan, train --budget and plan --export on the command line, with a tiny model."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from tightfit import Budget, DoesNotFit, Job, Plan, estimate, plan, train
from tightfit.data.columns import Columns
from tightfit.engine.dataset import read_data
from tightfit.errors import BadInput, PreflightFailed
from tightfit.planning.export import NOT_EXPORTABLE, _plain, read_columns, unexportable_reason
from tightfit.planning.training_recipe import Selector
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


def call(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tightfit", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True)


def job_of(model: Path, data: Path, **more: Any) -> Job:
    return Job(model=str(model), data=str(data), batch_size=8, max_length=32, **more)


def test_a_plan_is_written_and_trained(tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "plan.yaml", tmp_path / "run"
    done = call("plan", "--model", tiny_model, "--data", reviews, "--max-length", 32, "--budget", "3GB", "--out", file)
    assert done.returncode == 0, done.stderr
    assert "Fits the budget of 3.00 GiB" in done.stdout
    done = call("train", file, "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["measured"]["peak_bytes"] < 3 << 30
    assert record["predicted"]["seconds_per_step"] > 0
    assert record["recipe"]


def test_a_budget_that_is_too_small_exits_with_1_and_suggests_a_larger_one(
    tiny_model: Path, reviews: Path, tmp_path: Path
) -> None:
    job_options = ("--model", tiny_model, "--data", reviews, "--max-length", 32, "--budget", "50MB")
    done = call("plan", *job_options, "--json", "--out", tmp_path / "plan.yaml")
    content = json.loads(done.stdout)
    assert done.returncode == 1
    assert content["fits"] is False
    assert content["budget_bytes"] == 50 << 20
    assert "give a --budget well above" in content["suggestions"][0]
    assert not (tmp_path / "plan.yaml").exists()
    done = call("train", *job_options, "--out", tmp_path / "run")
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("tightfit: 50.0 MiB on this machine's CPU is less than")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_plan_and_train_in_python(tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    made = plan(job_of(tiny_model, reviews), "2GB", device="cpu")
    assert isinstance(made, Plan)
    assert made.fits
    with pytest.raises(DoesNotFit, match=r"10\.0 MiB on this machine's CPU is less than"):
        plan(job_of(tiny_model, reviews), "10MB", device="cpu")
    run = train(job_of(tiny_model, reviews), out=tmp_path / "run", device="cpu", budget="2GB", quiet=True)
    assert run.recipe == made.recipe.specs


@pytest.mark.slow
def test_a_plan_that_no_longer_fits_is_made_again(tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    job, size = job_of(tiny_model, reviews), "2GB"
    run = train(job, out=tmp_path / "a", device="cpu", budget=size, planned=["adafactor"], quiet=True)
    assert run.recipe == ["adafactor"]
    with pytest.raises(DoesNotFit):
        train(job, out=tmp_path / "b", device="cpu", budget="20MB", planned=["adafactor"], quiet=True)


@pytest.mark.slow
def test_a_plan_for_a_gpu_is_planned_again_on_a_cpu_with_its_constraints(
    tiny_model: Path, reviews: Path, tmp_path: Path
) -> None:
    job_options = ("--model", tiny_model, "--data", reviews, "--max-length", 32, "--budget", "3GB")
    done = call("plan", *job_options, "--device", "T4", "--use", "offload-optimizer", "--out", tmp_path / "plan.yaml")
    assert done.returncode == 0, done.stderr
    file = tmp_path / "plan.yaml"
    header = yaml.safe_load(file.read_text())["plan"]
    assert (header["device"], header["use"]) == ("T4 16GB", ["offload-optimizer"])
    file.write_text(file.read_text().replace("  use:\n  - offload-optimizer\n", "  use:\n  - micro-batch:size=2\n"))
    done = call("train", file, "--out", tmp_path / "run", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert "the plan cannot run here" in done.stderr
    assert "micro-batch:size=2" in load_run(tmp_path / "run").recipe


@pytest.mark.slow
def test_constraints_on_the_command_line_plan_again_within_the_plans_budget(
    tiny_model: Path, reviews: Path, tmp_path: Path
) -> None:
    file, job_options = tmp_path / "plan.yaml", ("--model", tiny_model, "--data", reviews, "--max-length", 32)
    assert call("plan", *job_options, "--budget", "3GB", "--out", file).returncode == 0
    done = call("train", file, "--use", "micro-batch:size=2", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "3.00 GiB" in done.stderr
    assert "micro-batch:size=2" in load_run(tmp_path / "run").recipe
    done = call("plan", file, "--budget", "2GB", "--avoid", "tiled-attention", "--json")
    assert done.returncode == 0, done.stderr
    again = json.loads(done.stdout)
    assert again["budget_bytes"] == 2 << 30
    assert not any(spec.startswith("tiled-attention") for spec in again["recipe"])


def test_a_plan_keeps_a_batch_size_larger_than_the_data(tiny_model: Path, reviews: Path) -> None:
    job = job_of(tiny_model, reviews).model_copy(update={"batch_size": 4096})
    assert plan(job, "3GB", device="cpu").job.batch_size == 4096


@pytest.fixture
def preflights(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make the first pre-flight fail; returns the list of pre-flights."""
    attempts: list[int] = []
    run_preflight = trainer.run_preflight

    def first_fails(running: Any, worst: Any) -> float:
        attempts.append(len(worst.train))
        if len(attempts) == 1:
            raise PreflightFailed("There is not enough memory.")
        return run_preflight(running, worst)

    monkeypatch.setattr(trainer, "run_preflight", first_fails)
    return attempts


@pytest.mark.slow
def test_a_recipe_that_fails_its_preflight_is_replaced_by_another(
    tiny_model: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preflights: list[int]
) -> None:
    """Both are held to the budget. The test sets the next recipe: tiny ones differ by less than 10 %."""
    budgets: list[int | None] = []

    def limit_memory(device: Any, log: Any, budget: int | None = None, needed: int | None = None) -> Any:
        budgets.append(budget)
        return contextlib.nullcontext()

    smaller = Recipe.parse(["adafactor", "micro-batch:size=2"])
    monkeypatch.setattr(training_run, "limit_memory", limit_memory)
    monkeypatch.setattr(Selector, "excluding", lambda self, selection: replace(self, planned=smaller))
    run = train(job_of(tiny_model, reviews), out=tmp_path / "run", device="cpu", budget="2GB", quiet=True)
    assert budgets == [2 << 30, 2 << 30]
    assert len(preflights) == 2
    assert run.recipe == smaller.specs
    assert any(note.endswith("(There is not enough memory.): planned again") for note in run.notes)


@pytest.mark.slow
def test_if_no_smaller_recipe_is_left_the_first_failure_is_raised(
    tiny_model: Path, reviews: Path, tmp_path: Path, preflights: list[int]
) -> None:
    with pytest.raises(PreflightFailed, match=r"^There is not enough memory\.$"):
        train(job_of(tiny_model, reviews), out=tmp_path / "run", device="cpu", budget="2GB", quiet=True)
    assert len(preflights) == 1
    assert not (tmp_path / "run").exists()


MEASURED = """
import os, subprocess, sys
started = subprocess.Popen([sys.executable, sys.argv[1]])
_, status, usage = os.wait4(started.pid, 0)
print(usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""
"""Runs a script and prints its peak in KiB; a process that the tests started would begin with their own peak."""


@pytest.mark.slow
def test_an_exported_script_runs_without_tightfit(tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    job_options = ("--model", tiny_model, "--data", reviews, "--max-length", 32, "--batch-size", 8, "--budget", "3GB")
    use = ("--use", "micro-batch:size=4", "--use", "gradient-checkpointing")
    done = call("plan", *job_options, *use, *(f"--avoid={name}" for name in NOT_EXPORTABLE), "--export", script)
    assert done.returncode == 0, done.stderr
    text = script.read_text()
    assert "import tightfit" not in text
    assert "from tightfit" not in text
    assert "per_device_train_batch_size=4" in text
    assert "Written for torch " in text
    assert "of it are this script's process with all its libraries" in text
    done = subprocess.run([sys.executable, "-c", MEASURED, script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "out" / "model" / "config.json").is_file()
    predicted = re.search(r"peak (\d+) MiB", text)
    assert predicted
    measured = int(done.stdout.split()[-1]) / 1024
    assert measured == pytest.approx(int(predicted[1]), rel=0.03), "the process that runs is estimated"


@pytest.mark.slow
def test_an_exported_script_calls_tightfit_for_its_own_strategies(
    tiny_model: Path, reviews: Path, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    job_options = ("--model", tiny_model, "--data", reviews, "--max-length", 32, "--budget", "3GB")
    done = call("plan", *job_options, "--use", "optimizer-in-backward", "--json")
    recipe = json.loads(done.stdout)["recipe"]
    file = tmp_path / "plan.yaml"
    done = call("plan", *job_options, "--use", "optimizer-in-backward", "--export", script, "--out", file)
    assert done.returncode == 0, done.stderr
    written = yaml.safe_load(file.read_text())
    assert (written["use"], written["plan"]["avoid"]) == (recipe, []), "the plan is the one without --export"
    assert "--avoid optimizer-in-backward" in done.stderr, "how to get a plain one"
    assert f"planned={recipe}".replace(" ", "") in script.read_text().replace(" ", "").replace("\n", ""), (
        "the script is of the same plan"
    )
    assert "optimizer-in-backward need tightfit." in script.read_text()
    assert 'budget="3072MB"' in script.read_text()
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, env=os.environ)
    assert done.returncode == 0, done.stderr[-2000:]
    assert load_run(tmp_path / "runs" / "exported").recipe == recipe


@pytest.mark.parametrize(
    ("rows", "validation", "reason"),
    [
        ("premise,hypothesis,label\na,b,c\n", False, "Training on text pairs needs tightfit."),
        ("text,label\na,b\n", True, "Validating on a separate file needs tightfit."),
        ("content,sentiment\na,b\n", False, None),
    ],
)
def test_an_exported_script_calls_tightfit_for_unusual_data(
    tmp_path: Path, rows: str, validation: bool, reason: str | None
) -> None:
    data = tmp_path / "rows.csv"
    data.write_text(rows)
    job = Job(model="m", data=str(data), validation=str(data) if validation else None)
    made: Any = SimpleNamespace(job=job, recipe=Recipe())
    assert unexportable_reason(made) == reason
    if reason is None:
        assert read_columns(job) == Columns(("content",), ("sentiment",))


@pytest.mark.parametrize("spec", ["freeze:pattern=*.attention.*", "freeze:embeddings=true"])
def test_an_exported_script_calls_tightfit_for_unusual_freezing(spec: str) -> None:
    assert unexportable_reason(plan_of(spec, "cpu")) == f"{spec} needs tightfit."


def test_an_exported_script_calls_tightfit_for_16_bits_on_a_cpu(reviews: Path) -> None:
    """Its own linear layers and norms take less memory than those of transformers; on a GPU they are the same."""
    job = Job(model="m", data=str(reviews))
    assert unexportable_reason(plan_of("mixed-precision", "cpu", job)) == "mixed-precision needs tightfit."
    assert unexportable_reason(plan_of("mixed-precision", "T4", job)) is None


def plan_of(spec: str, device: str, job: Job | None = None) -> Any:
    """What a script needs to know of a plan."""
    job = job or Job(model="m", data="none")
    return SimpleNamespace(job=job, recipe=Recipe.parse([spec]), budget=Budget.of("4GB", device))


def test_an_exported_script_holds_out_the_rows_of_the_run(reviews: Path, tmp_path: Path) -> None:
    """Rows without text, spaces around labels and labels in another order than as text do not change the split."""
    lines = [f"text {row} , {row % 11}" for row in range(60)]
    data = tmp_path / "rows.csv"
    data.write_text("text,label\n" + "\n".join([*lines[:7], "  ,3", "NA,4", *lines[7:]]) + "\n")
    job = Job(model="m", data=str(data), seed=5)
    made: Any = SimpleNamespace(
        job=job, recipe=Recipe(), budget=Budget.of("1GB", "cpu"), chosen=SimpleNamespace(and_time="")
    )
    text = _plain(made, peak=1)
    body = text.partition("rows = rows.map(encode")[0]
    body = body.replace("tokenizer = AutoTokenizer.from_pretrained(MODEL)", "")
    found: dict[str, Any] = {}
    exec(compile(body, "script", "exec"), found)
    ours = read_data(job)
    texts = np.array(found["rows"]["text"])
    assert texts[found["held_out"]].tolist() == ours.split.validation["text"]
    assert texts[~found["held_out"]].tolist() == ours.split.train["text"]
    assert tuple(found["names"]) == ours.labels.names


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--budget", "4"], "'4' has no unit: did you mean 4GB?"),
        (["--avoid", "micro-batches"], "did you mean 'micro-batch'"),
        (["--budget", "none"], "A plan needs a budget"),
        (["--budget", "4gigs"], "'4gigs' is not a memory size: write it like 4GB."),
        (["--budget", "lots"], "write it like 4GB, 3.5GB or 512MB."),
        (["--budget", "2GB", "--out", "plan.txt"], "should end in .yaml"),
        (["--budget", "2GB", "--export", "plan.yaml"], "should end in .py"),
        (["--budget", "2GB", "--allow", "anything"], "is not an effect on the result"),
        (["--budget", "2GB", "--avoid", "micro-batches"], "did you mean 'micro-batch'"),
        (["--budget", "2GB", "--device", "RTX 9999"], "There is no device"),
    ],
)
def test_bad_options_are_rejected(options: list[str], message: str, tiny_model: Path, reviews: Path) -> None:
    done = call("plan", "--model", tiny_model, "--data", reviews, *options)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("budget", [[], ["--budget", "none"], ["--budget", "2GB"]])
@pytest.mark.parametrize(
    ("options", "message"),
    [(["--avoid", "foo"], "There is no strategy 'foo' to avoid"), (["--allow", "everything"], "is not an effect on")],
)
def test_constraints_of_a_training_are_checked_with_and_without_a_budget(
    options: list[str], message: str, budget: list[str], tiny_model: Path, reviews: Path, tmp_path: Path
) -> None:
    done = call("train", "--model", tiny_model, "--data", reviews, "--out", tmp_path / "run", *options, *budget)
    assert done.returncode == 2
    assert message in done.stderr


def test_without_a_budget_the_baseline_is_trained_if_it_fits(
    tiny_model: Path, reviews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(job_of(tiny_model, reviews, max_steps=1), out=tmp_path / "run", device="cpu")
    assert run.recipe == []
    assert "No --budget: the baseline (no strategies) is trained, which needs" in capsys.readouterr().err


def test_what_a_run_needs_is_not_reserved_for_others(
    tiny_model: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan without a budget counts on all of a container, so the limit while training must not be lower."""
    limits: list[tuple[int | None, int | None]] = []

    def limit_memory(device: Any, log: Any, budget: int | None = None, needed: int | None = None) -> Any:
        limits.append((budget, needed))
        return contextlib.nullcontext()

    monkeypatch.setattr(training_run, "limit_memory", limit_memory)
    run = train(job_of(tiny_model, reviews, max_steps=1), out=tmp_path / "run", device="cpu", quiet=True)
    [(budget, needed)] = limits
    assert budget is None
    assert run.predicted.peak_bytes is not None
    assert needed is not None
    assert needed >= run.predicted.peak_bytes


def test_without_a_budget_a_plan_is_made_if_the_baseline_does_not_fit(
    tiny_model: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(model=str(tiny_model), data=str(reviews), batch_size=64, max_length=32, max_steps=1)
    baseline = estimate(job, device="cpu").error_band[1]
    monkeypatch.setattr("tightfit.device.usable_memory", lambda: baseline - (1 << 20))
    run = train(job, out=tmp_path / "run", device="cpu", quiet=True)
    assert run.recipe != []
    assert run.predicted.peak_bytes is not None
    assert any("free on this machine's CPU: " in note for note in run.notes)
    for name, more in (("none", {"budget": "none"}), ("used", {"use": ["adamw:fused=false"]})):
        run = train(job, out=tmp_path / name, device="cpu", quiet=True, **more)
        assert run.recipe == list(more.get("use", [])), "exactly what was asked for"


@pytest.mark.slow
def test_an_alternative_of_a_plan_is_trained(tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    file, job_options = tmp_path / "plan.yaml", ("--model", tiny_model, "--data", reviews, "--max-length", 32)
    done = call("plan", *job_options, "--budget", "3GB", "--json")
    second = json.loads(done.stdout)["alternatives"][1]["recipe"]
    done = call("plan", *job_options, "--budget", "3GB", "--take", 2, "--out", file, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["recipe"] == second
    assert yaml.safe_load(file.read_text())["use"] == second


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "following"),
    [
        ([], "train {job} --budget 3GB"),
        (["--device", "cpu", "--avoid", "adafactor"], "train {job} --budget 3GB --device cpu --avoid adafactor"),
        (["--device", "T4"], "train {job} --budget 3GB"),
        (["--take", "2"], "plan {job} --budget 3GB --take 2 --out plan.yaml && tightfit train plan.yaml"),
        (["--take", "2", "--out", "mine.yaml"], "train mine.yaml"),
    ],
)
def test_a_plan_ends_with_the_command_that_trains_it(
    options: list[str], following: str, tiny_model: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = f"--model {tiny_model} --data {reviews} --max-length 32"
    done = call("plan", *job.split(), "--budget", "3GB", *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].split() == ["next", "tightfit", *following.format(job=job).split()]


def test_a_training_ends_with_its_report_and_the_next_command(tiny_model: Path, reviews: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = call("train", "--model", tiny_model, "--data", reviews, "--max-steps", 1, "--max-length", 32, "--out", out)
    assert done.returncode == 0, done.stderr
    *_, report, following = done.stdout.splitlines()
    assert report.split() == ["report", str(out / "report.html")]
    assert (out / "report.html").is_file()
    assert following.startswith(f"next      tightfit predict {out} 'The room was clean")
    space = next(line for line in done.stderr.splitlines() if "of disk space" in line)
    assert done.stderr.index(space) < done.stderr.index("pre-flight …"), "said before it starts"


def test_a_budget_above_the_memory_of_the_machine_gives_a_warning() -> None:
    budget = Budget.of("900TB", "cpu")
    assert budget.warning is not None
    assert "more than" in budget.warning
    assert Budget.of("1GB", "T4").warning is None
    with pytest.raises(BadInput):
        parse_bytes("-1GB")
