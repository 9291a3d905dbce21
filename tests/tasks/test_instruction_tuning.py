"""Instruction tuning: the loss is of the answers alone, token by token, and chats that cannot be learned are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from language_models import CHAT_TEMPLATE, byte_tokenizer, make_causal, write_lines
from tightfit import Job, predict, train
from tightfit.data.columns import Columns
from tightfit.data.labels import Labels
from tightfit.data.rows import load_rows
from tightfit.errors import DataError, ModelError
from tightfit.tasks import with_task
from tightfit.tasks.instruction_tuning import InstructionTuning

TASK = InstructionTuning()
USER, ANSWER = {"role": "user", "content": "Is it clean?"}, {"role": "assistant", "content": "Yes, very."}
SYSTEM = {"role": "system", "content": "Be brief."}


def read(row: dict[str, Any]) -> Any:
    *asked, answer = row
    return TASK.read(row, Columns(tuple(asked), (answer,)) if asked else Columns((answer,)))[0]["messages"]


def encode(
    chat: Any, *, template: str | None = CHAT_TEMPLATE, max_length: int = 500
) -> tuple[Any, list[int], list[int]]:
    tokenizer = byte_tokenizer(chat_template=template)
    encoded = TASK.encode({"messages": [chat]}, tokenizer, max_length, Labels())
    return tokenizer, encoded["input_ids"][0], encoded["labels"][0]


@pytest.mark.parametrize(
    ("row", "messages"),
    [
        ({"messages": [SYSTEM, USER, ANSWER]}, [SYSTEM, USER, ANSWER]),
        ({"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]}, None),
        ({"prompt": "Hi", "completion": "Hello"}, None),
        ({"instruction": "Hi", "input": "", "output": "Hello"}, None),
        ({"prompt": [USER], "completion": [ANSWER]}, [USER, ANSWER]),
    ],
)
def test_chats_and_instructions_are_read_alike(row: dict[str, Any], messages: Any) -> None:
    found = read(row)
    if messages is not None:
        assert list(found) == messages
    else:
        assert [message["content"] for message in found] == ["Hi", "Hello"]
        assert found[1]["role"] == "assistant"


def test_the_text_that_an_instruction_is_about_follows_it() -> None:
    (prompt, answer) = read({"instruction": "Translate.", "input": "Zimmer", "output": "room"})
    assert (prompt["content"], answer["content"]) == ("Translate.\n\nZimmer", "room")


def test_the_loss_is_that_of_the_answers_alone() -> None:
    chat = [SYSTEM, USER, ANSWER, {"role": "user", "content": "And quiet?"}, {"role": "assistant", "content": "No."}]
    tokenizer, ids, labels = encode(chat)
    assert ids == tokenizer.apply_chat_template(chat)["input_ids"]
    learned = [tokenizer.decode([token]) for token in labels if token != -100]
    assert "".join(learned) == "Yes, very.<end>\nNo.<end>\n"
    assert all(label in (-100, token) for token, label in zip(ids, labels, strict=True))
    text = tokenizer.decode(ids)
    first = text.index("Yes, very.")
    assert labels[: len(tokenizer(text[:first])["input_ids"])] == [-100] * len(tokenizer(text[:first])["input_ids"])


def test_without_a_chat_template_prompt_and_completion_are_written_one_after_the_other() -> None:
    tokenizer, ids, labels = encode(read({"prompt": "Hi", "completion": "Hello"}), template=None)
    assert tokenizer.decode(ids) == "Hi\n\nHello<end>"
    assert tokenizer.decode([token for token in labels if token != -100]) == "Hello<end>"


def test_a_prompt_that_leaves_no_room_loses_its_beginning() -> None:
    chat = [{"role": "user", "content": "x" * 100}, ANSWER]
    tokenizer, ids, labels = encode(chat, max_length=40)
    assert len(ids) == len(labels) == 40
    assert tokenizer.decode([token for token in labels if token != -100]).startswith("Yes, very.")


def test_the_prompt_of_a_prediction_ends_where_the_answer_begins() -> None:
    tokenizer = byte_tokenizer(chat_template=CHAT_TEMPLATE)
    ids = TASK.encode({"messages": [[USER, ANSWER]]}, tokenizer, 500, None)["input_ids"][0]
    assert tokenizer.decode(ids) == "<start>user\nIs it clean?<end>\n<start>assistant\n"


def known(tmp_path: Path, rows: list[Any]) -> Any:
    found, _ = load_rows(str(write_lines(tmp_path / "a.jsonl", rows)), TASK)
    return found, TASK.known_rows("a.jsonl", found.dataset, Labels())


def test_rows_without_an_answer_are_dropped_with_their_lines(tmp_path: Path) -> None:
    empty = {"role": "assistant", "content": " "}
    rows = [{"messages": m} for m in ([USER, ANSWER], [USER], [USER, empty], "text", [{"role": 1}], [ANSWER])]
    found, (kept, notes) = known(tmp_path, rows)
    assert [note.split(": ")[1] for note in (*found.notes, *notes)] == [
        "1 row whose chat is not a list of roles and contents dropped (line 5)",
        "1 row without text dropped (line 6)",
        "3 rows without an answer of the assistant dropped (lines 2, 3, 4)",
    ]
    assert len(kept) == 1


def test_data_without_any_answer_is_rejected(tmp_path: Path) -> None:
    message = r"2 rows without an answer of the assistant dropped \(lines 1, 2\): there is nothing to learn from them"
    with pytest.raises(DataError, match=message):
        known(tmp_path, [{"messages": [USER]}, {"messages": [USER]}])


def test_a_chat_needs_a_template() -> None:
    with pytest.raises(ModelError, match=r"no chat template, which chats need \(line 1\): use the model's instruct"):
        encode([USER, ANSWER], template=None)


def test_a_chat_that_the_template_does_not_take_is_named() -> None:
    template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(ModelError, match=r"does not take the chat on line 1 \(roles must alternate\)"):
        encode([USER, ANSWER], template=template)


def test_a_template_that_rewrites_earlier_answers_is_refused() -> None:
    template = "{% for m in messages %}{{ m['content'] if loop.last else '' }}{{ '|' }}{% endfor %}"
    with pytest.raises(ModelError, match="writes earlier messages in another way once there are later ones"):
        encode([USER, ANSWER, USER, ANSWER], template=template)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "row",
    [
        pytest.param({"messages": [USER, ANSWER]}, id="chats"),
        pytest.param({"prompt": "Hi", "completion": "Hello"}, id="prompts", marks=SLOW),
        pytest.param({"instruction": "Hi", "output": "Hello"}, id="instructions", marks=SLOW),
    ],
)
def test_a_model_is_tuned_and_answers(tmp_path: Path, row: dict[str, Any]) -> None:
    data = write_lines(tmp_path / "a.jsonl", [row] * 20)
    job = Job(model=str(make_causal(tmp_path / "model")), data=str(data), batch_size=4, max_length=64, max_steps=2)
    assert with_task(job).task == TASK.name
    run = train(job, ["chunked-loss:tokens=16", "micro-batch:size=2"], out=tmp_path / "run", device="cpu", quiet=True)
    assert run.metrics["eval_perplexity"] > 1
    assert isinstance(predict(tmp_path / "run", "Hi", device="cpu")[0].text, str)


def test_the_batch_spec_has_the_fields_of_collated_batches() -> None:
    tokenizer = byte_tokenizer(chat_template=CHAT_TEMPLATE)
    encoded = TASK.encode({"messages": [[USER, ANSWER], [USER, ANSWER, USER, ANSWER]]}, tokenizer, 500, Labels())
    rows = [{name: encoded[name][row] for name in ("input_ids", "attention_mask", "labels")} for row in range(2)]
    batch = TASK.collator(tokenizer)(rows)
    made = TASK.batch_spec.make(2, batch["input_ids"].shape[1])
    assert {name: (value.dtype, value.shape) for name, value in made.items()} == {
        name: (batch[name].dtype, batch[name].shape) for name in made
    }
    assert (batch["labels"][batch["attention_mask"] == 0] == -100).all()
