"""Out-of-memory messages and scripts, explained."""

from __future__ import annotations

from pathlib import Path

import pytest
from heads import small_config

from tightfit.device import GPUS
from tightfit.errors import BadInput
from tightfit.explain import Settings, explain
from tightfit.explain.oom_message import read_message
from tightfit.explain.script import _changes

NOW = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 3.81 GiB "
    "of which 211.19 MiB is free. Including non-PyTorch memory, this process has 3.60 GiB memory in use. Of the "
    "allocated memory 3.10 GiB is allocated by PyTorch, and 97.29 MiB is reserved by PyTorch but unallocated."
)
BEFORE = (
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


def test_the_numbers_of_todays_message() -> None:
    found = read_message(NOW)
    assert found is not None
    assert (found.asked, found.capacity) == (512 << 20, int(3.81 * (1 << 30)))
    assert found.hint is None
    assert "512 MiB more were asked for" in found.sentence
    assert "3.10 GiB" in found.sentence


def test_an_older_message_with_scattered_memory_gets_a_hint() -> None:
    found = read_message(BEFORE)
    assert found is not None
    assert found.hint is not None
    assert "expandable_segments" in found.hint


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: out of memory",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)",
        "MemoryError",
        "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes",
    ],
)
def test_other_ways_to_say_it(text: str) -> None:
    explanation = explain(text)
    assert explanation.happened
    assert len(explanation.edits) == 3


def test_what_is_no_such_message_is_refused() -> None:
    with pytest.raises(BadInput, match="paste it whole"):
        explain("KeyError: 'label'")
    with pytest.raises(BadInput, match="paste it whole"):
        explain("")


def test_a_script_is_read_and_its_edits_are_rehearsed(tmp_path: Path) -> None:
    model, script = tmp_path / "model", tmp_path / "train.py"
    small_config("Bert", 4).save_pretrained(model)
    script.write_text(SCRIPT.format(model=str(model)))
    settings = Settings.read(script)
    read = {"per_device_train_batch_size": 16, "optim": "adamw_torch", "model": str(model), "max_length": 24}
    assert settings == Settings(**read, unread=("fp16=USE_FP16",))  # type: ignore[arg-type]
    explanation = explain("", settings, "RTX 3050 4GB")
    peaks = [edit.peak for edit in explanation.edits]
    assert peaks
    assert peaks == sorted(peaks, reverse=True)  # type: ignore[type-var]
    assert explanation.edits[-1].fits


@pytest.mark.parametrize("rows", [17, 50, 100])
def test_an_edit_leaves_the_effective_batch_as_it_was(rows: int) -> None:
    words, changed = next(_changes(Settings(per_device_train_batch_size=rows), GPUS["T4 16GB"]))
    assert changed.batch == rows
    assert changed.per_device_train_batch_size <= rows // 8
    assert f"gradient_accumulation_steps={changed.gradient_accumulation_steps}" in words


def test_a_message_of_torch_2_1_tells_the_card() -> None:
    said = "Tried to allocate 20.00 MiB. GPU 0 has a total capacty of 14.75 GiB of which 4.81 MiB is free."
    assert "The card of 14.8 GiB overflowed" in explain(said).happened[0]


def test_what_a_script_computes_is_said_to_be_unread(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    call = "TrainingArguments(per_device_train_batch_size=ROWS, bf16=args.bf16, seed=args.seed)"
    script.write_text(f"ROWS: int = 16\n{call}\n")
    settings = Settings.read(script)
    assert settings.per_device_train_batch_size == 16
    assert settings.unread == ("bf16=args.bf16",)
    assert "bf16=args.bf16 cannot be read" in explain("", settings, "T4").happened[0]


def test_arguments_as_json(tmp_path: Path) -> None:
    file = tmp_path / "args.json"
    file.write_text(
        '{"per_device_train_batch_size": 4, "gradient_accumulation_steps": 8, "optim": "adafactor", "x": 1}'
    )
    assert Settings.read(file).recipe().specs == ["micro-batch:size=4", "adafactor"]
    assert Settings.read(file).batch == 32


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("args.json", "[1]", "one JSON object"),
        ("args.json", "{", "not readable as JSON"),
        ("args.json", '{"per_device_train_batch_size": "8"}', "not what TrainingArguments takes"),
        ("args.json", '{"per_device_train_batch_size": 0}', "not what TrainingArguments takes"),
        ("train.py", "def (", "not readable as Python"),
        ("train.py", "print(1)", "no call of TrainingArguments"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, name: str, content: str, said: str) -> None:
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(BadInput, match=said):
        Settings.read(file)
    with pytest.raises(BadInput, match="cannot be read"):
        Settings.read(tmp_path / "none.json")
