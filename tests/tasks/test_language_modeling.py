"""Language modeling: texts become blocks, loss and perplexity are those of transformers, texts are continued."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from language_models import byte_tokenizer, make_causal, make_masked, texts, write_lines
from tightfit import Job, evaluate, load_run, predict, train
from tightfit.data.labels import Labels
from tightfit.data.rows import load_rows
from tightfit.errors import BadInput, DataError
from tightfit.tasks import with_task
from tightfit.tasks.language_modeling import LanguageModeling, MaskedLanguageModeling

TASK = LanguageModeling()


def job_of(model: Path, data: Path, **changes: Any) -> Job:
    values = {"batch_size": 4, "max_length": 32, "learning_rate": 3e-3, "max_steps": 3, **changes}
    return Job(model=str(model), data=str(data), **values)


def test_texts_are_joined_with_the_token_that_ends_each_and_cut_into_blocks() -> None:
    tokenizer = byte_tokenizer()
    encoded = TASK.encode({"text": ["abc", "defgh", "i"]}, tokenizer, 4, Labels())
    assert [tokenizer.decode(ids) for ids in encoded["input_ids"]] == ["abc<end>", "defg", "h<end>i<end>"]
    assert encoded["labels"] == encoded["input_ids"]
    assert encoded["row"] == [0, 1, 1]
    assert sum(encoded["truncated"]) == 0


def test_a_last_block_of_one_token_predicts_nothing_and_is_left_out() -> None:
    encoded = TASK.encode({"text": ["abcd"]}, byte_tokenizer(), 4, Labels())
    assert [len(ids) for ids in encoded["input_ids"]] == [4]


def test_long_texts_are_read_to_their_end(tmp_path: Path) -> None:
    rows, _ = load_rows(str(write_lines(tmp_path / "a.jsonl", [{"text": "word " * 30_000}])), TASK)
    assert len(rows.dataset["text"][0]) == 149_999
    assert rows.notes == ()


def test_texts_to_continue_keep_their_end_and_are_not_ended() -> None:
    tokenizer = byte_tokenizer()
    encoded = TASK.encode({"text": ["abcdef"]}, tokenizer, 4, None)
    assert tokenizer.decode(encoded["input_ids"][0]) == "cdef"


@pytest.mark.parametrize(("make", "name"), [(make_causal, TASK.name), (make_masked, MaskedLanguageModeling.name)])
def test_the_task_is_found_by_the_data_and_the_model(tmp_path: Path, make: Any, name: str) -> None:
    (tmp_path / "a.txt").write_text("\n".join(texts()), "utf-8")
    job = job_of(make(tmp_path / "model"), tmp_path / "a.txt")
    assert with_task(job).task == with_task(job.model_copy(update={"task": TASK.name})).task == name


def test_perplexity_is_that_of_the_model_on_the_blocks(tmp_path: Path) -> None:
    """The same loss as transformers computes for them, one row at a time."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, data = make_causal(tmp_path / "model"), write_lines(tmp_path / "a.jsonl", [{"text": t} for t in texts()])
    out = tmp_path / "run"
    run = train(job_of(model, data), ["chunked-loss:tokens=16"], out=out, device="cpu", quiet=True)
    assert run.job.task == TASK.name
    found = evaluate(out, device="cpu")
    trained, tokenizer = AutoModelForCausalLM.from_pretrained(out).eval(), AutoTokenizer.from_pretrained(out)
    held_out = load_rows(str(data), TASK)[0].dataset["text"]
    assert found.metrics["eval_perplexity"] == pytest.approx(math.exp(found.metrics["eval_loss"]))
    assert run.metrics["eval_perplexity"] == pytest.approx(math.exp(run.metrics["eval_loss"]))
    blocks = TASK.encode({"text": held_out}, tokenizer, 32, Labels())
    with torch.inference_mode():
        losses = [float(trained(torch.tensor([ids]), labels=torch.tensor([ids])).loss) for ids in blocks["input_ids"]]
    assert found.metrics["eval_loss"] == pytest.approx(sum(losses) / len(losses), rel=0.1), "of some of these rows"


@pytest.mark.slow
def test_a_trained_model_continues_texts(tmp_path: Path) -> None:
    model, data = make_causal(tmp_path / "model"), write_lines(tmp_path / "a.jsonl", [{"text": t} for t in texts()])
    train(job_of(model, data), out=tmp_path / "run", device="cpu", quiet=True)
    together = predict(tmp_path / "run", ["the room was", "a"], device="cpu")
    assert [prediction.text for prediction in together] == [
        predict(tmp_path / "run", text, device="cpu")[0].text for text in ("the room was", "a")
    ], "padding changes nothing"
    assert load_run(tmp_path / "run").metrics["eval_perplexity"] < 400


def test_a_masked_model_fills_in_what_is_hidden(tmp_path: Path) -> None:
    model, data = make_masked(tmp_path / "model"), write_lines(tmp_path / "a.jsonl", [{"text": t} for t in texts()])
    run = train(job_of(model, data), ["chunked-loss:tokens=8"], out=tmp_path / "run", device="cpu", quiet=True)
    assert run.job.task == MaskedLanguageModeling.name
    assert run.metrics["eval_perplexity"] > 1
    filled = predict(tmp_path / "run", "the ro<mask>m", device="cpu")[0].text
    assert filled.startswith("the ro")
    with pytest.raises(DataError, match="'the room' has no <mask> for the model to fill in"):
        predict(tmp_path / "run", "the room", device="cpu")


def test_a_task_without_labels_has_no_positive_one(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\nb\n", "utf-8")
    with pytest.raises(BadInput, match="has no labels to choose 'x' from"):
        train(job_of(make_causal(tmp_path / "model"), tmp_path / "a.txt", task=TASK.name, positive="x"))
