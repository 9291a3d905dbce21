"""Settings of training scripts of several kinds, read and never run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tightfit.errors import BadInput
from tightfit.explain import ScriptArgs

PLAIN_LOOP = """
import pandas as pd, torch
MAX_LEN, BATCH_SIZE = 160, 16
EPOCHS = 10
raise SystemExit("never run")
df = pd.read_csv("reviews.csv")
class Reviews(Dataset):
    def __init__(self, texts, tokenizer, max_len):
        self.max_len = max_len
    def __getitem__(self, item):
        return self.tokenizer.encode_plus(self.texts[item], max_length=self.max_len, padding="max_length")
def create_data_loader(df, tokenizer, max_len, batch_size):
    return DataLoader(Reviews(df.text, tokenizer, max_len), batch_size=batch_size, num_workers=4)
train_loader = create_data_loader(train, tokenizer, MAX_LEN, BATCH_SIZE)
class Classifier(nn.Module):
    def __init__(self, classes):
        self.bert = BertModel.from_pretrained("bert-base-cased")
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
for epoch in range(EPOCHS):
    for step, batch in enumerate(train_loader):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = criterion(model(**batch), labels)
        loss.backward()
        if (step + 1) % 4 == 0:
            optimizer.step()
"""
ACCELERATE = """
parser = argparse.ArgumentParser()
parser.add_argument("--model_name", default="roberta-large")
parser.add_argument("--batch-size", "-b", type=int, default=24)
parser.add_argument("--max_len", type=int, default=256)
args = parser.parse_args()
accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=2)
model = AutoModelForSequenceClassification.from_pretrained(args.model_name)
eval_dataloader = DataLoader(data["validation"], batch_size=64)
train_dataloader = DataLoader(data["train"], shuffle=True, batch_size=args.batch_size)
tokens = tokenizer(texts, truncation=True, max_length=args.max_len)
optimizer = AdamW(model.parameters(), lr=3e-5)
"""
SFT = """
settings = dict(per_device_train_batch_size=4, gradient_accumulation_steps=4, num_train_epochs=1)
args = SFTConfig(output_dir="x", **settings, max_length=2048, fp16=True)
trainer = SFTTrainer(model="Qwen/Qwen2.5-0.5B", args=args, train_dataset=load_dataset("trl-lib/Capybara"))
"""
RUN_GLUE = """
@dataclass
class DataArguments:
    max_seq_length: int = field(default=128, metadata={"help": "length"})
parser = HfArgumentParser((ModelArguments, DataArguments, TrainingArguments))
model_args, data_args, training_args = parser.parse_args_into_dataclasses()
model = AutoModelForSequenceClassification.from_pretrained(model_args.model_name_or_path)
tokens = tokenizer(texts, max_length=data_args.max_seq_length, truncation=True)
"""
TUTORIAL = """
config = {"rows": 8, "model": "hfl/rbt3"}
twice = twice + twice; one = other; other = one  # names that stand for each other
data = load_dataset("csv", data_files="reviews.csv")
tokens = tokenizer(data["review"], max_length=32 * 4, truncation=True)
model = AutoModelForSequenceClassification.from_pretrained(config["model"])
for parameter in model.bert.parameters():
    parameter.requires_grad = False
model.gradient_checkpointing_enable()
args = TrainingArguments("out", per_device_train_batch_size=config["rows"] * 2, per_device_eval_batch_size=int("64"))
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            PLAIN_LOOP,
            {
                "per_device_train_batch_size": 16,
                "gradient_accumulation_steps": 4,
                "bf16": True,
                "optim": "adamw",
                "model": "bert-base-cased",
                "head": "BertModel",
                "max_length": 160,
                "num_train_epochs": 10.0,
                "learning_rate": 2e-5,
                "data": "reviews.csv",
                "loop": True,
            },
        ),
        (
            ACCELERATE,
            {
                "per_device_train_batch_size": 24,
                "per_device_eval_batch_size": 64,
                "gradient_accumulation_steps": 2,
                "fp16": True,
                "optim": "adamw",
                "model": "roberta-large",
                "head": "AutoModelForSequenceClassification",
                "max_length": 256,
                "learning_rate": 3e-5,
                "loop": True,
            },
        ),
        (
            SFT,
            {
                "per_device_train_batch_size": 4,
                "gradient_accumulation_steps": 4,
                "gradient_checkpointing": True,
                "fp16": True,
                "model": "Qwen/Qwen2.5-0.5B",
                "head": "CausalLM",
                "max_length": 2048,
                "num_train_epochs": 1,
                "data": "trl-lib/Capybara",
            },
        ),
        (
            RUN_GLUE,
            {
                "max_length": 128,
                "head": "AutoModelForSequenceClassification",
                "unresolved": ("TrainingArguments",),
            },
        ),
        (
            TUTORIAL,
            {
                "per_device_train_batch_size": 16,
                "per_device_eval_batch_size": 64,
                "gradient_checkpointing": True,
                "model": "hfl/rbt3",
                "head": "AutoModelForSequenceClassification",
                "max_length": 128,
                "data": "reviews.csv",
                "frozen": True,
            },
        ),
    ],
    ids=["plain loop", "accelerate and argparse", "SFTConfig", "run_glue", "tutorial"],
)
def test_reads_scripts(tmp_path: Path, text: str, expected: dict[str, Any]) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    found, defaults = ScriptArgs.read(script), vars(ScriptArgs())
    changed = {name: value for name, value in vars(found).items() if value != defaults[name] and name != "known"}
    assert changed == expected


def test_reads_a_notebook(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# not code ("]},
        {"cell_type": "code", "source": ["!pip install transformers\n", "%matplotlib inline\n", "ROWS = 4"]},
        {"cell_type": "code", "source": "%%bash\nls ("},
        {"cell_type": "code", "source": "args = TrainingArguments('out', per_device_train_batch_size=ROWS)"},
    ]
    notebook = tmp_path / "train.ipynb"
    notebook.write_text(json.dumps({"cells": cells}))
    assert ScriptArgs.read(notebook).per_device_train_batch_size == 4


def test_reads_the_command_that_starts_a_script(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "export MODEL=bert-base-cased\npython run_glue.py \\\n  --model_name_or_path $MODEL --max_seq_length=128 \\\n"
        "  --per_device_train_batch_size 32 --fp16 --learning_rate 2e-5  # comment\n"
    )
    found = ScriptArgs.read(script)
    assert (found.model, found.max_length, found.per_device_train_batch_size) == ("bert-base-cased", 128, 32)
    assert (found.fp16, found.learning_rate) == (True, 2e-5)


def test_settings_that_a_script_computes_are_unresolved(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    call = "TrainingArguments(per_device_train_batch_size=ROWS, bf16=args.bf16, seed=args.seed)"
    script.write_text(f"ROWS: int = 16\n{call}\n")
    settings = ScriptArgs.read(script)
    assert settings.per_device_train_batch_size == 16
    assert settings.unresolved == ("bf16=args.bf16",)


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
        ("train.py", f"x = {'-' * 100_000}1", "not readable as Python"),
        ("train.ipynb", "{", "not readable as JSON"),
        ("train.py", "print(1)", "calls neither TrainingArguments nor DataLoader"),
    ],
)
def test_rejects_files_without_settings(tmp_path: Path, name: str, content: str, message: str) -> None:
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(BadInput, match=message):
        ScriptArgs.read(file)
    with pytest.raises(BadInput, match="cannot be read"):
        ScriptArgs.read(tmp_path / "none.json")
