"""Explanations: what a message and a script tell together, the edits, and the command that trains instead."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine.test_oom_message import CURRENT, OTHER_PROCESS
from heads import small_config

from tightfit.cli.explain import run_explanation
from tightfit.device import GPUS
from tightfit.errors import BadInput
from tightfit.explain import Explanation, ScriptArgs, explain
from tightfit.explain.edits import Edit, changes_of
from tightfit.messages import verbatim

SCRIPT = """
from transformers import AutoTokenizer, TrainingArguments
MODEL = {model!r}
LENGTH = 24
tokenizer = AutoTokenizer.from_pretrained(MODEL)
rows = data.map(lambda row: tokenizer(row["text"], truncation=True, max_length=LENGTH))
open("/never/run", "w")
args = TrainingArguments("out", per_device_train_batch_size=16, per_device_eval_batch_size=64, optim="adamw_torch")
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    small_config("Bert", 4).save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


@pytest.fixture
def script(tmp_path: Path, model: str) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(model=model))
    return path


def test_rejects_text_that_is_not_an_out_of_memory_message() -> None:
    for text in ("KeyError: 'label'", ""):
        with pytest.raises(BadInput, match="paste the complete message"):
            explain(text)


def test_simulates_the_edits_of_a_script_until_it_fits(script: Path) -> None:
    settings = ScriptArgs.read(script)
    explanation = explain(CURRENT, settings, "RTX 3050 4GB")
    peaks = [edit.peak for edit in explanation.edits]
    assert peaks
    assert peaks == sorted(peaks, reverse=True)  # type: ignore[type-var]
    assert explanation.edits[-1].fits
    assert not explain("", settings, "RTX 3050 4GB").edits  # it fits as it is


def test_an_edit_fits_only_what_other_processes_leave(script: Path) -> None:
    """The tiny model fits the GPU with ease, but not beside what the other process holds."""
    crowded = OTHER_PROCESS.replace("5.92 GiB", "14.00 GiB")
    settings = ScriptArgs.read(script)
    alone, beside = explain(CURRENT, settings), explain(crowded, settings)
    assert alone.edits[-1].fits
    assert not any(edit.fits for edit in beside.edits)
    assert "a GPU with 71.7 MiB left" in " ".join(beside.findings)


def test_the_command_trains_the_same_within_what_is_left(script: Path, model: str) -> None:
    explanation = explain(OTHER_PROCESS, ScriptArgs.read(script))
    assert explanation.command == (
        f"tightfit train --model {model} --data reviews.csv --batch-size 16 --max-length 24 --epochs 3 "
        "--learning-rate 5e-05 --budget 8.1GB"
    )
    assert explanation.to_json()["command"] == explanation.command


def test_several_simulated_edits_are_said_to_go_together() -> None:
    first, second = (Edit(verbatim(f"edit {number}"), number << 30, fits=False) for number in (2, 1))
    together = "Make these edits in order; each predicted peak includes the edits before it:"
    assert Explanation((), (first, second)).order == together
    assert Explanation((), (first,)).order is None
    assert len(explain(CURRENT).edits) > 1
    assert explain(CURRENT).order is None  # without peaks, each edit is one of several to choose from


def test_on_a_cpu_the_command_takes_what_is_free() -> None:
    command = str(explain("Killed").command)
    assert command.startswith("tightfit train --model MODEL")
    assert "--budget" not in command


def test_without_a_script_the_assumed_batch_is_told() -> None:
    findings = " ".join(explain(CURRENT).findings)
    assert "the defaults of TrainingArguments are assumed: 8 rows of 512 tokens" in findings
    assert "--batch-size 8 --max-length 512" in str(explain(CURRENT).command)


def test_evaluation_has_a_batch_size_of_its_own(script: Path) -> None:
    findings = " ".join(explain(f"in evaluation_loop\n{CURRENT}", ScriptArgs.read(script)).findings)
    assert "Memory ran out during evaluation, which uses per_device_eval_batch_size" in findings
    assert "Evaluation with 64 rows (per_device_eval_batch_size) needs" in findings
    assert "set per_device_eval_batch_size=8" not in findings
    full = CURRENT.replace("3.81 GiB", "0.50 GiB")
    assert "set per_device_eval_batch_size=8" in " ".join(explain(full, ScriptArgs.read(script)).findings)


def test_what_the_message_tells_is_told_even_if_the_script_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "oom.txt").write_text(OTHER_PROCESS)
    (tmp_path / "train.py").write_text("TrainingArguments(per_device_train_batch_size=*32)")
    explanation = run_explanation(tmp_path / "oom.txt", tmp_path / "train.py", None, None, quiet=True)
    assert "5.92 GiB in use by process 20123" in explanation.findings[0]
    assert any("is not readable as Python" in finding for finding in explanation.findings)
    assert explanation.edits
    (tmp_path / "oom.txt").write_text("")
    with pytest.raises(BadInput, match="is not readable as Python"):
        run_explanation(tmp_path / "oom.txt", tmp_path / "train.py", None, None, quiet=True)


def test_a_model_that_is_not_here_costs_only_the_sizes(tmp_path: Path) -> None:
    settings = ScriptArgs.of({"model": str(tmp_path / "nowhere")})
    explanation = explain(CURRENT, settings)
    assert "512 MiB more requested" in explanation.findings[0]
    assert "The edits have no sizes: There is no model folder" in " ".join(explanation.findings)
    assert [edit.peak for edit in explanation.edits] == [None] * 3


def test_language_models_get_edits_without_sizes_and_no_command() -> None:
    settings = ScriptArgs.of({"model": "Qwen/Qwen2.5-0.5B", "head": "AutoModelForCausalLM", "max_length": 1024})
    explanation = explain(CURRENT, settings)
    assert "also needs the logits of its whole vocabulary for 8 x 1024 tokens" in " ".join(explanation.findings)
    assert explanation.command is None
    assert [edit.peak for edit in explanation.edits] == [None] * 3


def test_edits_of_a_loop_are_those_of_a_loop() -> None:
    changes = [change for change, _ in changes_of(ScriptArgs(loop=True), GPUS["T4 16GB"])]
    assert "DataLoader(batch_size=1), (loss / 8).backward(), and optimizer.step() after every 8 batches" in changes
    assert "model.gradient_checkpointing_enable()" in changes
    assert any("torch.amp.GradScaler" in change for change in changes)


@pytest.mark.parametrize("rows", [17, 50, 100])
def test_edits_keep_the_effective_batch_size(rows: int) -> None:
    change, changed = next(changes_of(ScriptArgs(per_device_train_batch_size=rows), GPUS["T4 16GB"]))
    assert changed.batch == rows
    assert changed.per_device_train_batch_size <= rows // 8
    assert f"gradient_accumulation_steps={changed.gradient_accumulation_steps}" in change
    assert f"are {changed.gradient_accumulation_steps} times too large" in change
