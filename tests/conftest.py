"""Fixtures: a tiny model and tiny data files, generated without downloads."""

from __future__ import annotations

import csv
import os
import random
from pathlib import Path
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # set before the hub client is imported: no test may use the network
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["OMP_NUM_THREADS"] = "1"  # tiny models gain nothing from more threads, and tests run in parallel

collect_ignore = ["gpu"]  # needs the CUDA build of torch: `make test-gpu`
GOOD = ["clean", "quiet", "kind", "lovely", "warm", "friendly", "spotless", "generous", "calm", "bright"]
BAD = ["dirty", "loud", "rude", "broken", "cold", "smelly", "damp", "noisy", "dark", "greedy"]
FILLER = ["the", "room", "was", "and", "staff", "were", "bed", "it", "had", "a", "very", "breakfast"]


@pytest.fixture(autouse=True, scope="session")
def _temporary_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the tests' row files out of the user's cache."""
    os.environ["HF_DATASETS_CACHE"] = str(tmp_path_factory.mktemp("rows"))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT with 2 layers, a word-level tokenizer and saved weights."""
    return make_model(tmp_path_factory.mktemp("models") / "tiny-bert")


def make_model(folder: Path, **shape: Any) -> Path:
    """A tiny BERT; `shape` overrides its config."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder.mkdir(parents=True)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *GOOD, *BAD, *FILLER]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    tiny = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(vocab_size=len(words), max_position_embeddings=64, **{**tiny, **shape})
    BertModel(config).save_pretrained(folder)
    return folder


def write_reviews(path: Path, rows: int = 60, seed: int = 0) -> Path:
    """`label,review` rows whose words determine the label."""
    picker = random.Random(seed)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["label", "review"])
        for number in range(rows):
            label = number % 2
            words = picker.choices(FILLER, k=picker.randint(2, 20)) + picker.choices(GOOD if label else BAD, k=3)
            picker.shuffle(words)
            writer.writerow([label, f"{' '.join(words)} {number}"])
    return path


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    return write_reviews(tmp_path / "reviews.csv")


@pytest.fixture(scope="session")
def trained(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the tiny model."""
    from tightfit import Job, train

    folder = tmp_path_factory.mktemp("runs")
    data = write_reviews(folder / "reviews.csv")
    job = Job(model=str(tiny_model), data=str(data), batch_size=8, max_length=32, epochs=6, learning_rate=5e-3)
    train(job, ["micro-batch:size=4"], out=folder / "run", device="cpu", quiet=True)
    return folder / "run"
