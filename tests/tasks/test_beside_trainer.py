"""The baseline recipe trains every task as transformers.Trainer does: the same losses, dropout included."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from conftest import BAD, FILLER, GOOD

from tightfit import Job, train
from tightfit.engine.dataset import read_data
from tightfit.models import load_tokenizer
from tightfit.tasks import find_task

STEPS, SEED = 12, 7


def row_of(task: str, picker: random.Random) -> dict[str, Any]:
    """A row of the task, with the labels in its words."""
    words = picker.choices([*GOOD, *BAD, *FILLER], k=picker.randint(4, 24))
    text, good = " ".join(words), sum(word in GOOD for word in words)
    answer = {"text": [words[2]], "answer_start": [len(" ".join(words[:2])) + 1]}
    columns: dict[str, dict[str, Any]] = {
        "text-classification": {"text": text, "label": int(good > 2)},
        "text-regression": {"text": text, "score": good / len(words)},
        "multi-label-classification": {"text": text, "labels": [word for word in ("clean", "dirty") if word in words]},
        "token-classification": {"tokens": words, "tags": ["B-GOOD" if word in GOOD else "O" for word in words]},
        "question-answering": {"question": "the room", "context": text, "answers": answer},
    }
    return columns[task]


def write(folder: Path, task: str) -> tuple[str, str]:
    picker, files = random.Random(0), (folder / "train.jsonl", folder / "validation.jsonl")
    for file, rows in zip(files, (120, 16), strict=True):  # more than the steps take: evaluations draw random numbers
        file.write_text("".join(json.dumps(row_of(task, picker)) + "\n" for _ in range(rows)), "utf-8")
    return str(files[0]), str(files[1])


def losses_of_trainer(job: Job, folder: Path) -> dict[int, float]:
    """Of transformers.Trainer with the same rows and the same new head."""
    from transformers import Trainer, TrainingArguments, set_seed

    task, data, tokenizer = find_task(job.task), read_data(job), load_tokenizer(job.model)
    tokens = task.tokenize(data.split.train, tokenizer, job.max_length, data.labels)
    set_seed(SEED)
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=job.batch_size,
        learning_rate=job.learning_rate,
        weight_decay=job.weight_decay,
        logging_steps=10,
        logging_first_step=True,
        label_names=list(task.label_names),
        seed=SEED,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(
        task.head().from_pretrained(job.model, **task.config_changes(data.labels)),
        arguments,
        train_dataset=task.model_inputs(tokens.dataset),
        data_collator=task.collator(tokenizer),
    )
    trainer.train()
    return {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}


@pytest.mark.slow
@pytest.mark.parametrize(
    "task",
    [
        "text-classification",
        "text-regression",
        "multi-label-classification",
        "token-classification",
        "question-answering",
    ],
)
def test_losses_equal_those_of_transformers_trainer(task: str, tiny_model: Path, tmp_path: Path) -> None:
    data, validation = write(tmp_path, task)
    settings = {"batch_size": 8, "max_length": 32, "max_steps": STEPS, "learning_rate": 1e-3, "seed": SEED}
    job = Job(model=str(tiny_model), data=data, validation=validation, task=task, **settings)
    run = train(job, out=tmp_path / "run", budget="none", device="cpu", quiet=True)
    losses = {entry["step"]: entry["loss"] for entry in run.history if "loss" in entry}
    expected = losses_of_trainer(job, tmp_path / "trainer")
    assert list(losses) == [1, 10] == list(expected)
    assert losses == pytest.approx(expected, rel=1e-5)
