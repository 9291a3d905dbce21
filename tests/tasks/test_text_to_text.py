"""Text to text: pairs are read, texts to write have a length of their own, an encoder-decoder learns and writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from language_models import byte_tokenizer, make_seq2seq, texts, write_lines
from tightfit import Job, load_run, predict, train
from tightfit.data.columns import Columns
from tightfit.data.labels import Labels
from tightfit.data.rows import load_rows
from tightfit.engine.dataset import read_stats
from tightfit.errors import BadInput
from tightfit.tasks import check_task, task_of, with_task
from tightfit.tasks.text_to_text import TextToText

TASK = TextToText()


def job_of(model: Path, data: Path, **changes: Any) -> Job:
    values = {"batch_size": 4, "max_length": 48, "learning_rate": 3e-3, "max_steps": 3, **changes}
    return Job(model=str(model), data=str(data), **values)


def pairs(path: Path, count: int = 30) -> Path:
    return write_lines(path, [{"document": text, "summary": text.split()[1]} for text in texts(count)])


def test_the_first_columns_of_a_file_without_a_header_line_are_read_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("Hi.\t嗨。\tCC-BY\nRun.\t你用跑的。\tCC-BY\n", "utf-8")
    rows, _ = load_rows(str(tmp_path / "a.tsv"), TASK)
    assert (rows.columns, rows.dataset["text"]) == (Columns(("1",), ("2",)), ["Hi.", "Run."])
    assert rows.dataset["target"] == ["嗨。", "你用跑的。"]


def test_rows_without_a_text_to_write_are_dropped_with_their_lines(tmp_path: Path) -> None:
    data = write_lines(tmp_path / "a.jsonl", [{"source": "a", "target": t} for t in ("b", "", None, " ")])
    rows, _ = load_rows(str(data), TASK)
    assert [note.split(": ")[1] for note in rows.notes] == ["3 rows without a text to write dropped (lines 2, 3, 4)"]


def test_both_texts_are_truncated_and_the_prefix_is_part_of_the_first() -> None:
    tokenizer, task = byte_tokenizer(), TextToText("sum: ")
    rows = {"text": ["abc", "abcdefgh"], "target": ["xyz", "x" * 20]}
    encoded = task.encode(rows, tokenizer, 10, Labels())
    assert [tokenizer.decode(ids) for ids in encoded["input_ids"]] == ["sum: abc", "sum: abcde"]
    assert [len(ids) for ids in encoded["labels"]] == [3, 10]
    assert task.lengths(rows, tokenizer, 10, Labels()) == [8, 10]


def test_the_batch_spec_has_the_fields_of_collated_batches() -> None:
    tokenizer = byte_tokenizer()
    encoded = TASK.encode({"text": ["abc", "abcdef"], "target": ["xyz", "x"]}, tokenizer, 10, Labels())
    rows = [{name: encoded[name][row] for name in ("input_ids", "attention_mask", "labels")} for row in range(2)]
    batch = TASK.collator(tokenizer)(rows)
    assert batch["labels"][1].tolist()[1:] == [-100, -100]
    assert {name: value.shape for name, value in batch.items()} == {
        "input_ids": (2, 6),
        "attention_mask": (2, 6),
        "labels": (2, 3),
    }


def test_a_simulation_knows_the_longest_text_to_write(tmp_path: Path) -> None:
    data = write_lines(tmp_path / "a.jsonl", [{"source": "a" * n, "target": "b" * (n + 3)} for n in range(1, 20)])
    job = job_of(make_seq2seq(tmp_path / "model"), data, task=TASK.name)
    assert 19 <= read_stats(job).targets <= 22


def test_only_this_task_has_a_prefix(tmp_path: Path) -> None:
    job = Job(model="m", data="d", source_prefix="translate: ")
    assert task_of(job.model_copy(update={"task": TASK.name})) == TextToText("translate: ")
    with pytest.raises(BadInput, match="text-classification has no --source-prefix"):
        check_task(job)


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(["chunked-loss:tokens=16", "micro-batch:size=2"], id="chunks"),
        pytest.param([], id="baseline", marks=pytest.mark.slow),
    ],
)
def test_a_model_learns_and_writes(tmp_path: Path, use: list[str]) -> None:
    job = job_of(make_seq2seq(tmp_path / "model"), pairs(tmp_path / "a.jsonl"), source_prefix="say: ")
    assert with_task(job).task == TASK.name
    run = train(job, use, out=tmp_path / "run", device="cpu", quiet=True)
    assert run.metrics["eval_perplexity"] > 1
    assert load_run(tmp_path / "run").job.source_prefix == "say: "
    assert isinstance(predict(tmp_path / "run", "the room was clean", device="cpu")[0].text, str)
