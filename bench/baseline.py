"""transformers.Trainer as the tutorials call it: trains in this process and prints one JSON object."""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time

import numpy as np
from datasets import load_dataset
from sklearn.metrics import accuracy_score, f1_score
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
    set_seed,
)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("model", "train", "validation"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--random-weights", action="store_true")
    parser.add_argument("--max-steps", type=int, default=-1)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--max-length", type=int, default=128)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(run(given, folder)))


def run(given: argparse.Namespace, folder: str) -> dict[str, float]:
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    rows = load_dataset("csv", data_files={"train": given.train, "validation": given.validation}, cache_dir=folder)
    tokens = rows.map(
        lambda r: encode(r, tokenizer, given.max_length), batched=True, remove_columns=["label", "review"]
    )
    set_seed(given.seed)
    trainer = Trainer(
        load_model(given),
        arguments(folder, given),
        train_dataset=tokens["train"],
        eval_dataset=tokens["validation"],
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=metrics,
    )
    start = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - start
    scores = next(entry for entry in trainer.state.log_history if "eval_f1" in entry)
    return {
        "f1": scores["eval_f1"],
        "accuracy": scores["eval_accuracy"],
        "loss": scores["eval_loss"],
        "seconds": seconds,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def encode(rows: dict, tokenizer, max_length: int) -> dict:
    encoded = tokenizer(rows["review"], max_length=max_length, truncation=True)
    encoded["labels"] = rows["label"]
    return encoded


def load_model(given: argparse.Namespace) -> PreTrainedModel:
    if given.random_weights:
        return AutoModelForSequenceClassification.from_config(AutoConfig.from_pretrained(given.model))
    return AutoModelForSequenceClassification.from_pretrained(given.model)


def arguments(folder: str, given: argparse.Namespace, **others) -> TrainingArguments:
    usual = {
        "output_dir": folder,
        "max_steps": given.max_steps,
        "per_device_train_batch_size": given.batch_size,
        "per_device_eval_batch_size": 32,
        "num_train_epochs": 1,
        "logging_steps": 10,
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "save_total_limit": 3,
        "learning_rate": 2e-5,
        "weight_decay": 0.01,
        "metric_for_best_model": "f1",
        "load_best_model_at_end": True,
        "seed": given.seed,
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
    }
    return TrainingArguments(**{**usual, **others})


def metrics(prediction) -> dict[str, float]:
    labels = np.argmax(prediction.predictions, axis=-1)
    return {
        "f1": f1_score(prediction.label_ids, labels),
        "accuracy": accuracy_score(prediction.label_ids, labels),
    }


if __name__ == "__main__":
    main()
