"""Results as text: what print() shows of them, and where the time of a run went."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from tightfit import estimate, evaluate, load_run
from tightfit.i18n import using_language
from tightfit.models import quiet_transformers
from tightfit.report.html import write_report
from tightfit.report.terminal import total_time
from tightfit.runs.record import Measured


def test_a_run_is_printed_as_a_table(trained: Path) -> None:
    run = load_run(trained)
    lines = str(run).splitlines()
    assert lines[0].endswith("parameters trained in 42 steps")
    assert any(line.split()[:1] == ["backward"] for line in lines)
    assert len(lines) < 20
    assert "\x1b" not in str(run)


def test_the_peak_is_marked_once_and_one_step_is_not_several(trained: Path) -> None:
    run = load_run(trained)
    tied = run.measured.model_copy(update={"phases": dict.fromkeys(run.measured.phases, run.measured.peak_bytes)})
    text = str(run.model_copy(update={"measured": tied, "steps": 1}))
    assert text.count("← peak") == 1
    assert "trained in 1 step\n" in text


def test_an_estimate_is_printed_as_a_table(trained: Path) -> None:
    found = estimate(load_run(trained).job, device="T4 16GB")
    lines = str(found).splitlines()
    assert lines[0].startswith("peak ")
    assert any(line.startswith("backward") for line in lines)
    assert any(line.startswith("CUDA libraries: CUDA context and kernels 512 MiB (assumed; ") for line in lines)
    assert len(lines) < 20


def test_an_estimate_for_a_gpu_says_what_libraries_take(trained: Path) -> None:
    libraries = estimate(load_run(trained).job, device="T4 16GB").to_json()["libraries"]
    assert [each["name"] for each in libraries] == ["CUDA context and kernels", "cuBLAS workspaces"]
    assert [each["bytes"] for each in libraries] == [512 << 20, 2 * 8320 << 10]
    assert "others measured 300 MiB to 624 MiB" in libraries[0]["source"]
    assert estimate(load_run(trained).job, device="cpu").to_json()["libraries"] == []


def test_an_evaluation_is_printed_with_its_scores(trained: Path) -> None:
    found = evaluate(trained, device="cpu")
    assert f"accuracy {found.metrics['eval_accuracy']:.4f}" in str(found)
    assert f"accuracy {found.metrics['eval_accuracy']:.4f}" in found._repr_html_()


def test_the_time_of_a_run_is_that_of_everything(trained: Path) -> None:
    measured = load_run(trained).measured
    assert measured.total_seconds is not None
    assert measured.activities is not None
    assert {"reading the data", "simulating", "loading the model", "pre-flight", "training"} <= set(measured.activities)
    assert sum(measured.activities.values()) == pytest.approx(measured.total_seconds, abs=0.1)
    assert measured.activities["training"] == pytest.approx(measured.seconds, abs=0.1)
    assert measured.total_seconds > measured.seconds


MEASURED = Measured(
    peak_bytes=1,
    phases={},
    seconds=12.0,
    total_seconds=434.0,
    activities={"starting": 0.02, "planning": 400.0, "pre-flight": 22.0, "training": 12.0},
)


def test_the_time_is_shown_by_activity() -> None:
    text = "7 min 14 s (planning 6 min 40 s, pre-flight 22.0 s, training 12.0 s)"
    assert str(total_time(MEASURED)) == text


def test_the_report_lists_the_time_by_activity(trained: Path, tmp_path: Path) -> None:
    page = write_report([trained], tmp_path / "report.html", "en").read_text("utf-8")
    assert "– training" in page


def test_bitsandbytes_does_not_warn_of_kernels_that_are_not_used() -> None:
    """Also where peft imports it."""
    logger = logging.getLogger("bitsandbytes.backends.cpu.ops")
    before = logger.level
    with quiet_transformers():
        assert not logger.isEnabledFor(logging.WARNING)
    assert logger.level == before


_WARN = """
import logging, sys
class Finder:
    def find_spec(self, name, path, target=None):
        if name == "peft":
            logging.getLogger("bitsandbytes.backends.cpu.ops").warning("Failed to load CPU gemm_4bit_forward")
sys.meta_path.insert(0, Finder())
"""
_ESTIMATE = """
from tightfit import Job, estimate
if __name__ == "__main__":
    estimate(Job(model=sys.argv[1], data=sys.argv[2], max_length=32), device="T4")
    print("peft" in sys.modules)
"""


def test_importing_peft_shows_no_warning_of_bitsandbytes() -> None:
    script = f"{_WARN}\nimport tightfit.simulation.simulate"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "gemm_4bit_forward" not in done.stderr


def test_an_estimate_in_python_shows_no_warning_of_bitsandbytes(tiny_model: Path, reviews: Path) -> None:
    """transformers imports peft with its Trainer, before the simulation does."""
    command = [sys.executable, "-c", _WARN + _ESTIMATE, str(tiny_model), str(reviews)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
    assert "gemm_4bit_forward" not in done.stderr


def test_times_in_chinese() -> None:
    with using_language("zh"):
        from tightfit.i18n import render

        assert render(total_time(MEASURED)) == "7 分 14 秒（规划 6 分 40 秒、训练前预检 22.0 秒、训练 12.0 秒）"
