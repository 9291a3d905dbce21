"""The public functions in any thread, beside a training, and without a trace in the program that calls them."""

from __future__ import annotations

import csv
import gc
import json
import logging
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub.utils
import numpy as np
import pytest
import torch
from conftest import write_reviews
from plans import RATES
from transformers.utils import logging as transformers_logging

import tightfit
from library_state import changes, library_functions
from tightfit import Job, api, estimate, plan, train
from tightfit.device import find_device
from tightfit.errors import BadInput, DoesNotFit
from tightfit.simulation.job_simulation import Simulation
from tightfit.simulation.simulate import BatchShapes
from tightfit.system.processes import process_lock
from tightfit.timing import calibrate
from tightfit.training.trainer import Trainer
from worker_functions import build_loop, public_answers


@pytest.fixture(scope="module")
def job(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Job:
    data = write_reviews(tmp_path_factory.mktemp("data") / "reviews.csv")
    return Job(model=str(tiny_model), data=str(data), batch_size=8, max_length=32, epochs=3)


@pytest.fixture(autouse=True)
def _known_rates(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rates of this machine are in a file that all processes read: their calibration would differ."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    calibrate._save_cache(RATES)


@pytest.fixture
def _new_worker(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A worker with this test's environment."""
    with api.Worker(api._set_up_worker) as worker:
        monkeypatch.setattr(api, "_worker", worker)
        yield


def alone(job: Job, names: list[str]) -> dict[str, Any]:
    """The same answers in a process of their own."""
    script = "import json, sys, worker_functions as w; print(json.dumps(w.public_answers(*json.load(sys.stdin))))"
    request = json.dumps([job.model_dump(), names])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script], input=request, capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


@pytest.mark.slow
@pytest.mark.usefixtures("_new_worker")
def test_four_threads_beside_a_training_get_the_same_answers_and_do_not_change_it(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["plan for a GPU", "plan for the CPU", "estimate for a GPU", "estimate for the CPU"]
    train(job, ["chunked-layers:size=2"], out=tmp_path / "undisturbed", device="cpu", quiet=True)
    started, done = threading.Event(), threading.Event()
    original, steps = Trainer.training_step, list[int]()

    def training_step(self: Trainer, *args: Any, **kwargs: Any) -> torch.Tensor:
        steps.append(self.state.global_step)
        started.set()
        if self.state.global_step == self.state.max_steps - 1:
            done.wait(300)  # the training has not ended before the last answer
        return original(self, *args, **kwargs)

    def ask(name: str) -> Any:
        assert started.wait(300)
        return json.loads(json.dumps(public_answers(job.model_dump(), [name])[name]))

    monkeypatch.setattr(Trainer, "training_step", training_step)
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(ask, name) for name in names]
        threading.Thread(target=lambda: ([answer.exception() for answer in asked], done.set())).start()
        train(job, ["chunked-layers:size=2"], out=tmp_path / "disturbed", device="cpu", quiet=True)
        answers = {name: answer.result() for name, answer in zip(names, asked, strict=True)}
    assert done.is_set()
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("undisturbed", "disturbed")]
    assert weights[0] == weights[1]
    expected = alone(job, names[::-1])
    for name in names:
        assert answers[name]["answer"] == expected[name]["answer"]
    # Measured in each process. The worker keeps its size; alone, it grows with the traces of each answer.
    assert answers[names[0]]["process"] == expected[names[0]]["process"]
    assert answers[names[1]]["process"] == answers[names[3]]["process"]
    assert answers[names[3]]["process"] == pytest.approx(expected[names[3]]["process"], rel=0.02)


@pytest.fixture
def in_worker(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions that would have run in the worker."""
    names: list[str] = []

    class Recorder:
        def call(self, function: Callable[..., Any], *args: Any) -> Any:
            names.append(function.__name__)

    monkeypatch.setattr(api, "_worker", Recorder())
    return names


def test_a_worker_is_used_in_other_threads_and_while_this_process_is_busy(job: Job, in_worker: list[str]) -> None:
    def ask() -> None:
        estimate(job, device="T4 16GB")

    ask()
    assert in_worker == []
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert in_worker == ["_estimate"]
    with process_lock.held():  # as in a callback of a training
        ask()
    assert in_worker == ["_estimate", "_estimate"]


def test_a_training_holds_the_lock_of_this_process(
    job: Job, tmp_path: Path, in_worker: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def training_step(self: Trainer, *args: Any, **kwargs: Any) -> torch.Tensor:
        estimate(job, device="T4 16GB")
        raise ZeroDivisionError

    monkeypatch.setattr(Trainer, "training_step", training_step)
    with pytest.raises(ZeroDivisionError):
        train(job, out=tmp_path / "run", device="cpu", quiet=True)
    assert in_worker == ["_estimate"]
    estimate(job, device="T4 16GB")
    assert in_worker == ["_estimate"]


@pytest.mark.slow
@pytest.mark.usefixtures("_new_worker")
def test_a_worker_passes_on_plans_that_do_not_fit_relative_paths_and_own_loops(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    with process_lock.held():
        with pytest.raises(DoesNotFit) as caught:
            plan(job, "520MB", device="T4 16GB")
        assert caught.value.plan.suggestions
        with pytest.raises(BadInput, match="There is no model folder"):
            estimate(job.model_copy(update={"model": "./nowhere"}), device="T4 16GB")
        monkeypatch.chdir(Path(job.data).parent)
        relative = job.model_copy(update={"data": Path(job.data).name})
        found = plan(relative, "1GB", device="T4 16GB")
        assert found.job == relative
        peak = estimate(build_loop, device="T4 16GB").peak
        with pytest.raises(BadInput, match="importable from a module"):
            estimate(lambda: build_loop(), device="T4 16GB")
    assert found.chosen == plan(job, "1GB", device="T4 16GB").chosen
    assert peak == estimate(build_loop, device="T4 16GB").peak


def process_settings() -> dict[str, Any]:
    """Settings of the whole process that a call could change."""
    logger = logging.getLogger("bitsandbytes.backends.cpu.ops")
    return {
        "random": random.getstate(),
        "numpy": str(np.random.get_state()),
        "torch": torch.get_rng_state().tolist(),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "torch settings": (torch.is_grad_enabled(), torch.get_default_dtype(), torch.is_autocast_enabled("cpu")),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "garbage collection": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()),
        "transformers": (transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()),
        "hub": huggingface_hub.utils.are_progress_bars_disabled(),
        "datasets": datasets.utils.are_progress_bars_disabled(),
        "bitsandbytes": logger.level,
        "environment": dict(os.environ),
        "csv": csv.field_size_limit(),
        "warnings": list(warnings.filters),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "limits": resource.getrlimit(resource.RLIMIT_DATA),
        "imports": (list(sys.meta_path), list(sys.path)),
        "folder": Path.cwd(),
        "running threads": [thread.name for thread in threading.enumerate()],
    }


def trace_on_real_tensors(job: Job) -> None:
    """As `estimate(probe=True)` does for a model that cannot be simulated."""
    setup = Simulation.of(job, find_device("cpu")).setup
    setup._trace_training(tightfit.Recipe(), lambda parts: BatchShapes([(2, 8)], [(2, 8)]), fake=False)


def test_plan_and_estimate_name_the_same_peak_of_a_recipe(
    tiny_model: Path, reviews: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the longest rows of small micro-batches are all truncated, so that none of them has a padding mask."""
    monkeypatch.setattr(calibrate, "cpu_rates", lambda: RATES)
    job = Job(model=str(tiny_model), data=str(reviews), batch_size=8, max_length=6, random_weights=True)
    planned = plan(job, "64GB", device="cpu")
    for option in (planned.baseline, planned.chosen, *planned.alternatives):
        assert estimate(job, option.recipe, device="cpu").peak == option.peak


def test_library_calls_leave_the_settings_of_the_process_alone(job: Job, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    calls: dict[str, Callable[[], Any]] = {
        "plan": lambda: plan(job, "2GB", device="cpu"),
        "estimate": lambda: estimate(job, ["adamw-8bit"], device="cpu"),
        "estimate of a loop": lambda: estimate(build_loop, device="cpu"),
        "estimate on real tensors": lambda: trace_on_real_tensors(job),
        "train": lambda: train(job, ["adamw-8bit"], out=tmp_path / "run", device="cpu", quiet=True),
        "train within a budget": lambda: train(job, out=tmp_path / "second", device="cpu", budget="2GB", quiet=True),
        "predict": lambda: tightfit.predict(tmp_path / "run", ["clean and quiet"], device="cpu"),
    }
    for name, call in calls.items():
        settings, functions = process_settings(), library_functions()
        call()
        after = process_settings()
        assert {key: value for key, value in after.items() if value != settings[key]} == {}, name
        assert changes(functions) == [], name
