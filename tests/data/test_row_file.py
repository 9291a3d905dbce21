"""Row files: rows are read back as written, in any order, from every process, and not from memory."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import write_reviews

from tightfit.data import row_file
from tightfit.data.row_file import FeatureFile, RowFile, store_rows

TEXTS = ["plain", "", "两行\n一个\ttab", "emoji 👩‍👩‍👧 and 🏨", "", "é" * 5000, "\r\n", "end"]
KINDS = {"text": str, "label": str, "line": int}


def text_rows() -> RowFile:
    rows = ({"text": text, "label": str(i % 2), "line": i + 2} for i, text in enumerate(TEXTS))
    return store_rows(rows, KINDS)


def token_rows(rows: int = 50) -> tuple[RowFile, list[dict[str, Any]]]:
    generator = random.Random(0)
    written = []
    for number in range(rows):
        ids = [generator.randrange(2**31) for _ in range(generator.randint(0, 40))]
        written.append({"input_ids": ids, "attention_mask": [1] * len(ids), "labels": number % 3})
    return store_rows(iter(written), {"input_ids": list, "attention_mask": list, "labels": int}), written


def test_texts_are_read_back_unchanged() -> None:
    rows = text_rows()
    assert rows["text"] == TEXTS
    assert rows["line"] == list(range(2, 10))
    assert rows[3] == {"text": TEXTS[3], "label": "1", "line": 5}
    assert rows[-1]["text"] == "end"
    assert (len(rows), rows.column_names) == (8, ["text", "label", "line"])
    with pytest.raises(IndexError):
        rows[8]


def test_select_can_be_chained() -> None:
    rows = text_rows().select([7, 3, 3, 0]).select(range(1, 4)).drop("label", "unknown")
    assert rows.column_names == ["text", "line"]
    assert [row["text"] for row in rows.__getitems__([2, 0])] == [TEXTS[0], TEXTS[3]]
    assert rows["line"] == [5, 5, 2]
    assert rows.select([])["text"] == []
    assert list(rows.select([]).batches()) == []


def test_an_empty_file_has_its_columns() -> None:
    rows = store_rows(iter([]), KINDS)
    assert (len(rows), rows["text"], rows["line"]) == (0, [], [])


def test_batches_cover_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_file, "_BATCH_ROWS", 3)
    batches = list(text_rows().batches())
    assert [len(batch["line"]) for batch in batches] == [3, 3, 2]
    assert [text for batch in batches for text in batch["text"]] == TEXTS


@pytest.mark.parametrize("gap", [0, 1 << 20], ids=["cell by cell", "in one read"])
def test_batches_of_token_lists(gap: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As lists of Python ints, which is what collators pad."""
    monkeypatch.setattr(row_file, "_READ_GAP", gap)
    rows, written = token_rows()
    chosen = random.Random(1).sample(range(50), 20)
    batch = rows.__getitems__(chosen)
    assert batch == [written[row] for row in chosen]
    assert list(batch[0]) == ["input_ids", "attention_mask", "labels"]
    assert {type(number) for row in batch for number in (*row["input_ids"], row["labels"])} == {int}


def test_the_data_loader_reads_whole_batches(tiny_model: Path) -> None:
    from torch.utils.data import DataLoader
    from transformers import DataCollatorWithPadding

    from tightfit.models import load_tokenizer
    from tightfit.tasks.text_classification import TextClassification

    tokenizer = load_tokenizer(str(tiny_model))
    texts = ["the room was clean", "loud", "very kind staff"]
    rows = store_rows(({"text": text} for text in texts), {"text": str})
    tokens = TextClassification().tokenize(rows, tokenizer, 5, None)
    assert (tokens.lengths, tokens.truncated, tokens.truncated_tokens) == ([5, 3, 5], 1, 1)
    [batch] = DataLoader(tokens.longest_first().dataset, batch_size=3, collate_fn=DataCollatorWithPadding(tokenizer))
    expected = tokenizer([texts[0], texts[2], texts[1]], truncation=True, max_length=5, padding=True)
    assert {name: value.tolist() for name, value in batch.items()} == dict(expected)


def test_numbers_keep_their_kind() -> None:
    rows = [{"text": "a", "count": 3, "score": 0.1}, {"text": "b", "count": -4, "score": 2.0}]
    stored = store_rows(rows, {"text": str, "count": int, "score": float})
    assert stored.__getitems__([1, 0]) == [rows[1], rows[0]]
    assert [type(cell) for cell in (stored[0]["count"], stored[1]["score"])] == [int, float]


@pytest.mark.parametrize("chosen", [[2], [3, 0]], ids=["one row", "two rows"])
def test_features_of_every_size_are_read_as_they_were_written(chosen: list[int], tmp_path: Path) -> None:
    """Also where columns of 8 bytes follow one of 4, as a label that is a number."""
    batch = {
        "labels": torch.tensor([0.5, 1.5, 2.5, 3.5]),
        "ids": torch.arange(4)[:, None],
        "states": torch.arange(24, dtype=torch.bfloat16).reshape(4, 2, 3),
    }
    file = FeatureFile(4, tmp_path)
    file.write(range(4), batch)
    found = file.__getitems__(chosen)
    assert list(found) == list(batch)
    assert all(torch.equal(found[name], value[chosen]) for name, value in batch.items())


def test_the_file_is_anonymous_and_in_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    rows = text_rows()
    assert list((tmp_path / "cache").iterdir()) == []
    if sys.platform == "linux":
        file = Path(f"/proc/self/fd/{rows._columns['text'].file.fileno()}").readlink()
        assert file.parent == tmp_path / "cache"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"HF_DATASETS_CACHE": "{}/sets", "HF_HOME": "{}/home"}, "sets"),
        ({"HF_HOME": "{}/home", "XDG_CACHE_HOME": "{}/xdg"}, "home/datasets"),
        ({"XDG_CACHE_HOME": "{}/xdg"}, "xdg/huggingface/datasets"),
        ({"HOME": "{}"}, ".cache/huggingface/datasets"),
    ],
)
def test_the_cache_folder_is_that_of_the_datasets_library(
    given: dict[str, str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_DATASETS_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    text_rows()
    assert (tmp_path / expected).is_dir()


def test_an_unwritable_cache_folder_is_not_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "file" / "cache"))
    assert text_rows()["text"] == TEXTS


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_raises_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("wb", buffering=0) as full:
        monkeypatch.setattr(row_file, "_anonymous_file", lambda: full)
        with pytest.raises(OSError, match="No space left"):
            text_rows()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_processes_can_read_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_file, "_READ_GAP", 0)  # many small reads, so that they overlap
    rows, written = token_rows()
    child = os.fork()
    generator = random.Random(child)
    equal = all(rows[row] == written[row] for row in (generator.randrange(50) for _ in range(3000)))
    if child == 0:
        os._exit(0 if equal else 1)
    assert equal
    assert os.waitpid(child, 0)[1] == 0


_SCRIPT = """
import sys
if {blocked}:
    sys.modules.update(dict.fromkeys(("datasets", "pandas", "pyarrow")))  # importing one fails

from tightfit.engine.dataset import read_data, read_stats
from tightfit.job import Job
from tightfit.models import load_tokenizer
from tightfit.tasks import find_task

job = Job(model=sys.argv[1], data=sys.argv[2], batch_size=8, max_length=32, max_steps=2)
stats, data = read_stats(job), read_data(job)
tokens = find_task(job.task).tokenize(data.split.train, load_tokenizer(job.model), 32, data.labels)
assert tokens.lengths == stats.train_lengths
if {blocked}:
    from tightfit import evaluate, predict, train

    train(job, ["micro-batch:size=4"], out=sys.argv[3], device="cpu", quiet=True)
    assert evaluate(sys.argv[3], device="cpu").rows == 6
    assert len(predict(sys.argv[3], ["clean", "loud"], device="cpu")) == 2
print([name for name in ("datasets", "pandas", "pyarrow") if sys.modules.get(name)])
"""


@pytest.mark.slow
@pytest.mark.parametrize("blocked", [False, True], ids=["reading", "training"])
def test_a_csv_does_not_need_the_datasets_library(tiny_model: Path, tmp_path: Path, blocked: bool) -> None:
    """It would take 88 MiB of every training run."""
    data, script = write_reviews(tmp_path / "a.csv"), _SCRIPT.format(blocked=blocked)
    command = [sys.executable, "-c", script, str(tiny_model), str(data), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
