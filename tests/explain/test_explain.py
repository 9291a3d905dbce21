"""Explanations of out-of-memory messages and of training scripts."""

from __future__ import annotations

from pathlib import Path

import pytest
from heads import small_config

from tightfit.device import GPUS
from tightfit.errors import BadInput
from tightfit.explain import ScriptArgs, explain
from tightfit.explain.oom_message import read_message
from tightfit.explain.script import _edits

CURRENT = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 3.81 GiB "
    "of which 211.19 MiB is free. Including non-PyTorch memory, this process has 3.60 GiB memory in use. Of the "
    "allocated memory 3.10 GiB is allocated by PyTorch, and 97.29 MiB is reserved by PyTorch but unallocated."
)
OLDER = (
    "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 15.75 GiB total capacity; 9.10 GiB already "
    "allocated; 16.50 MiB free; 14.30 GiB reserved in total by PyTorch)"
)
SCRIPT = """
from transformers import AutoTokenizer, TrainingArguments
MODEL = {model!r}
LENGTH = 24
tokenizer = AutoTokenizer.from_pretrained(MODEL)
rows = data.map(lambda row: tokenizer(row["text"], truncation=True, max_length=LENGTH))
open("/never/run", "w")
args = TrainingArguments("out", per_device_train_batch_size=16, optim="adamw_torch", fp16=USE_FP16)
"""


def test_reads_the_numbers_of_a_current_message() -> None:
    found = read_message(CURRENT)
    assert found is not None
    assert (found.requested, found.capacity) == (512 << 20, int(3.81 * (1 << 30)))
    assert found.advice is None
    assert "512 MiB more requested" in found.summary
    assert "3.10 GiB allocated by tensors" in found.summary


def test_an_older_message_with_fragmented_memory_gets_advice() -> None:
    found = read_message(OLDER)
    assert found is not None
    assert found.advice is not None
    assert "expandable_segments" in found.advice


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: out of memory",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)",
        "MemoryError",
        "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes",
    ],
)
def test_other_out_of_memory_messages_are_recognised(text: str) -> None:
    explanation = explain(text)
    assert explanation.findings
    assert len(explanation.edits) == 3


def test_rejects_text_that_is_not_an_out_of_memory_message() -> None:
    with pytest.raises(BadInput, match="paste the complete message"):
        explain("KeyError: 'label'")
    with pytest.raises(BadInput, match="paste the complete message"):
        explain("")


def test_reads_a_script_without_running_it_and_simulates_the_edits(tmp_path: Path) -> None:
    model, script = tmp_path / "model", tmp_path / "train.py"
    small_config("Bert", 4).save_pretrained(model)
    script.write_text(SCRIPT.format(model=str(model)))
    settings = ScriptArgs.read(script)
    read = {"per_device_train_batch_size": 16, "optim": "adamw_torch", "model": str(model), "max_length": 24}
    assert settings == ScriptArgs(**read, unresolved=("fp16=USE_FP16",))  # type: ignore[arg-type]
    explanation = explain("", settings, "RTX 3050 4GB")
    peaks = [edit.peak for edit in explanation.edits]
    assert peaks
    assert peaks == sorted(peaks, reverse=True)  # type: ignore[type-var]
    assert explanation.edits[-1].fits


@pytest.mark.parametrize("rows", [17, 50, 100])
def test_edits_keep_the_effective_batch_size(rows: int) -> None:
    change, changed = next(_edits(ScriptArgs(per_device_train_batch_size=rows), GPUS["T4 16GB"]))
    assert changed.batch == rows
    assert changed.per_device_train_batch_size <= rows // 8
    assert f"gradient_accumulation_steps={changed.gradient_accumulation_steps}" in change


def test_reads_the_gpu_size_from_a_torch_2_1_message() -> None:
    message = "Tried to allocate 20.00 MiB. GPU 0 has a total capacty of 14.75 GiB of which 4.81 MiB is free."
    assert "Out of memory on a GPU with 14.8 GiB" in explain(message).findings[0]


def test_settings_that_a_script_computes_are_reported_as_unresolved(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    call = "TrainingArguments(per_device_train_batch_size=ROWS, bf16=args.bf16, seed=args.seed)"
    script.write_text(f"ROWS: int = 16\n{call}\n")
    settings = ScriptArgs.read(script)
    assert settings.per_device_train_batch_size == 16
    assert settings.unresolved == ("bf16=args.bf16",)
    assert "bf16=args.bf16 cannot be read" in explain("", settings, "T4").findings[0]


def test_reads_arguments_as_json(tmp_path: Path) -> None:
    file = tmp_path / "args.json"
    file.write_text(
        '{"per_device_train_batch_size": 4, "gradient_accumulation_steps": 8, "optim": "adafactor", "x": 1}'
    )
    assert ScriptArgs.read(file).recipe().specs == ["micro-batch:size=4", "adafactor"]
    assert ScriptArgs.read(file).batch == 32


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("args.json", "[1]", "one JSON object"),
        ("args.json", "{", "not readable as JSON"),
        ("args.json", '{"per_device_train_batch_size": "8"}', "which TrainingArguments does not accept"),
        ("args.json", '{"per_device_train_batch_size": 0}', "which TrainingArguments does not accept"),
        ("train.py", "def (", "not readable as Python"),
        ("train.py", "print(1)", "does not call TrainingArguments"),
    ],
)
def test_rejects_files_without_training_arguments(tmp_path: Path, name: str, content: str, message: str) -> None:
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(BadInput, match=message):
        ScriptArgs.read(file)
    with pytest.raises(BadInput, match="cannot be read"):
        ScriptArgs.read(tmp_path / "none.json")
