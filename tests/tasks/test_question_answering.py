"""Question answering: answers and their places, windows, scores as SQuAD's, and runs of a tiny model."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import BAD, FILLER, GOOD

from tightfit import Job, evaluate, predict, train
from tightfit.data.labels import Labels
from tightfit.data.rows import load_rows
from tightfit.errors import BadInput, DataError
from tightfit.models import load_tokenizer
from tightfit.runs.record import load_run
from tightfit.tasks.base import ModelInputs
from tightfit.tasks.question_answering import AnswerPrediction, QuestionAnswering, _scores, normalized_words

TASK = QuestionAnswering()


def write_lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return path


def write_squad(path: Path, *paragraphs: tuple[str, list[dict[str, Any]]]) -> Path:
    """`paragraphs` are contexts with their questions."""
    content = [{"title": "t", "paragraphs": [{"context": context, "qas": qas} for context, qas in paragraphs]}]
    path.write_text(json.dumps({"version": "1.1", "data": content}, ensure_ascii=False), "utf-8")
    return path


# Rows

CONTEXT = "  The room was clean. The staff were kind."


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({"text": ["clean", "room"], "answer_start": [15, 6]}, (("clean", "room"), [13, 4])),  # of the hub
        ([{"text": "clean", "answer_start": 15}], (("clean",), [13])),  # of SQuAD
        ([{"text": "clean", "start": 15}], (("clean",), [13])),
        (["clean"], (("clean",), [13])),
        ("clean", (("clean",), [13])),
        ({"text": ["The"], "answer_start": [22]}, (("The",), [20])),
        ({"text": [], "answer_start": []}, ((), [])),
    ],
)
def test_answers_are_read_as_they_are_written(tmp_path: Path, answers: Any, expected: Any) -> None:
    path = write_lines(tmp_path / "a.jsonl", {"question": "how", "context": CONTEXT, "answers": answers})
    rows, _ = load_rows(str(path), TASK)
    assert (rows.dataset["answers"][0], rows.dataset["starts"][0]) == expected


def test_squad_files_are_read(tmp_path: Path) -> None:
    questions = [
        {"id": "1", "question": "how was it", "answers": [{"text": "clean", "answer_start": 15}]},
        {"id": "2", "question": "who was rude", "answers": [], "is_impossible": True},
    ]
    rows, _ = load_rows(str(write_squad(tmp_path / "a.json", (CONTEXT, questions))), TASK)
    assert rows.dataset["question"] == ["how was it", "who was rude"]
    assert rows.dataset["starts"] == [[13], []]
    assert rows.notes[0].endswith("1 row without an answer: the model learns that their context has none (line 2)")
    assert TASK.find_labels(rows, will_be_split=True)[0] == Labels(("no answer",))


def test_answers_that_are_not_in_their_context_are_counted(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "a.jsonl",
        {"question": "a", "context": CONTEXT, "answers": {"text": ["spotless"], "answer_start": [15]}},
        {"question": "a", "context": CONTEXT, "answers": {"text": ["kind"], "answer_start": [0]}},
        {"question": "", "context": CONTEXT, "answers": {"text": ["kind"], "answer_start": [0]}},
        {"question": "a", "context": None, "answers": {"text": ["kind"], "answer_start": [0]}},
    )
    rows, _ = load_rows(str(path), TASK)
    assert rows.dataset["starts"] == [[35]]
    assert [note.split(": ", 1)[1] for note in rows.notes] == [
        "1 row whose answer is not in its context dropped (line 1)",
        "2 rows without text dropped (lines 3, 4)",
        "1 row whose answer is not where it says, taken from the nearest place (line 2)",
    ]


def test_data_without_answers_or_contexts_is_rejected(tmp_path: Path) -> None:
    unanswered = {"question": "a", "context": "b", "answers": {"text": [], "answer_start": []}}
    rows, _ = load_rows(str(write_lines(tmp_path / "a.jsonl", unanswered)), TASK)
    with pytest.raises(DataError, match="none of the 1 questions has an answer"):
        TASK.find_labels(rows, will_be_split=True)
    path = write_lines(tmp_path / "b.jsonl", {"query": "a", "answer": "b"})
    with pytest.raises(
        DataError, match=r"only the column 'query' is named: name both, such as --text question,context"
    ):
        load_rows(str(path), TASK)
    with pytest.raises(BadInput, match="takes a question and its context"):
        TASK.rows_of([("a question",)])


# Tokens


def test_long_contexts_are_read_in_windows_that_overlap(tiny_model: Path) -> None:
    tokenizer = load_tokenizer(str(tiny_model))
    words = random.Random(0).choices(FILLER, k=60)
    words[50] = "clean"
    context = " ".join(words)
    start = context.index("clean")
    rows = {"question": ["the room", "it"], "context": [context, "a bed"]}
    rows |= {"answers": [("clean",), ("bed",)], "starts": [[start], [2]]}  # type: ignore[dict-item]
    encoded = TASK.encode(rows, tokenizer, 32, Labels())
    assert encoded["row"][-1] == 1
    assert len(encoded["row"]) == 4
    assert all(len(ids) <= 32 for ids in encoded["input_ids"])
    spans = [np.array(offsets).reshape(-1, 2) for offsets in encoded["offsets"]]
    places = list(zip(encoded["start_positions"], encoded["end_positions"], strict=True))
    found = [context[span[a, 0] : span[b, 1]] for span, (a, b) in zip(spans[:3], places, strict=False) if a]
    assert found
    assert set(found) == {"clean"}
    assert (0, 0) in places  # windows without the answer
    covered = {int(place) for span in spans[:3] for place in span[span[:, 0] >= 0, 0]}
    assert covered == {0, *(i + 1 for i, letter in enumerate(context) if letter == " ")}


def test_a_question_has_at_most_half_of_a_window(tiny_model: Path) -> None:
    tokenizer = load_tokenizer(str(tiny_model))
    rows = {"question": ["the " * 50], "context": ["a clean bed"]}
    encoded = TASK.encode(rows, tokenizer, 32, None)
    assert encoded["truncated"] == [1]
    assert encoded["input_ids"][0].count(tokenizer.convert_tokens_to_ids("the")) == 16
    with pytest.raises(BadInput, match="max-length 12 is too short for a question and a part of its context"):
        TASK.encode(rows, tokenizer, 12, None)


# Scores


@pytest.mark.parametrize(
    ("answer", "gold", "f1", "exact"),
    [
        ("The Eiffel Tower!", "eiffel tower", 1.0, 1.0),
        ("the tower in Paris", "Eiffel tower", 0.4, 0.0),
        ("an", "", 1.0, 1.0),
        ("", "tower", 0.0, 0.0),
        ("华沙。", "华沙", 1.0, 1.0),
        ("在华沙", "华沙", 0.8, 0.0),
        ("1867 年", "1867年", 1.0, 1.0),
    ],
)
def test_answers_are_compared_as_in_squad(answer: str, gold: str, f1: float, exact: float) -> None:
    assert _scores(answer, (gold, "something else")) == pytest.approx((f1, exact))


def test_normalization_is_that_of_squad() -> None:
    assert normalized_words("A cat, an owl and the DOG's bed") == ["cat", "owl", "and", "dogs", "bed"]


def test_no_answer_is_given_where_it_scores_higher(tiny_model: Path) -> None:
    tokenizer = load_tokenizer(str(tiny_model))
    rows = TASK.rows_of([("the room", "a clean bed")])
    tokens = TASK.tokenize(rows, tokenizer, 32, None).dataset
    start, end = np.zeros(8), np.zeros(8)  # [CLS] the room [SEP] a clean bed [SEP]
    start[[0, 1, 5]], end[[0, 1, 6]] = (2, 9, 1), (2, 9, 1)
    for labels, expected in ((Labels(), "clean bed"), (Labels(("no answer",)), "")):
        [found] = TASK.decode([(start, end)], ModelInputs(rows, tokens, tokenizer, labels))
        assert found.answer == expected
        assert 0 < found.confidence < 1


# Runs


def write_questions(path: Path, rows: int = 80, unanswered: float = 0.0) -> Path:
    """The answer is the only good word, or the only bad one, as the question says."""
    picker = random.Random(0)

    def row() -> dict[str, Any]:
        words = picker.choices(FILLER, k=picker.randint(6, 45))
        asked = picker.random() < 0.5
        places = sorted(picker.sample(range(len(words)), 2))
        words[places[0]], words[places[1]] = picker.sample([picker.choice(GOOD), picker.choice(BAD)], 2)
        answer = next(word for word in words if word in (GOOD if asked else BAD))
        if picker.random() < unanswered:
            words[words.index(answer)], answer = "the", ""
        answers = {"text": [answer] if answer else [], "answer_start": []}
        return {"question": "the breakfast" if asked else "the staff", "context": " ".join(words), "answers": answers}

    return write_lines(path, *(row() for _ in range(rows)))


@pytest.fixture(scope="module")
def asked(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the tiny model, whose task was found by its data; some contexts need two windows."""
    folder = tmp_path_factory.mktemp("questions")
    data = write_questions(folder / "questions.jsonl", unanswered=0.2)
    job = Job(model=str(tiny_model), data=str(data), batch_size=8, max_length=32, epochs=12, learning_rate=5e-3)
    train(job, ["micro-batch:size=4"], out=folder / "run", device="cpu", quiet=True)
    return folder / "run"


def test_a_run_learns_to_answer(asked: Path) -> None:
    run = load_run(asked)
    assert run.job.task == "question-answering"
    assert run.data.train_rows > 72  # windows
    assert run.metrics["eval_f1"] > run.metrics["eval_constant_f1"]
    again = evaluate(asked, device="cpu")
    assert again.rows == 8
    scores = {name: score for name, score in again.metrics.items() if name != "eval_loss"}  # of other batches
    assert scores == pytest.approx({name: run.metrics[name] for name in scores})


def test_the_model_answers(asked: Path) -> None:
    context = "the room was clean and the bed was dirty"
    answers = predict(asked, [("the breakfast", context), ("the staff", "the room " * 30 + context)], device="cpu")
    for found, text in zip(answers, (context, "the room " * 30 + context), strict=True):
        assert isinstance(found, AnswerPrediction)
        assert found.answer == text[found.start : found.end]
        assert 0 <= found.confidence <= 1
