"""Text classification: columns, labels, metrics and predictions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tightfit.data.columns import Columns, find_columns
from tightfit.data.labels import Labels
from tightfit.data.row_file import store_rows
from tightfit.data.rows import load_rows
from tightfit.errors import DataError
from tightfit.tasks.base import ModelInputs
from tightfit.tasks.text_classification import TextClassification

TASK = TextClassification()


@pytest.mark.parametrize(
    ("names", "text", "label"),
    [
        (["label", "review"], ("review",), "label"),
        (["id", "Text", "Label"], ("Text",), "Label"),
        (["content", "category", "url"], ("content",), "category"),
        (["idx", "sentence1", "sentence2", "label"], ("sentence1", "sentence2"), "label"),
        (["premise", "hypothesis", "label"], ("premise", "hypothesis"), "label"),
        (["stars", "review"], ("review",), "stars"),
        (["what they said", "label"], ("what they said",), "label"),
        (["评论", "标签"], ("评论",), "标签"),
    ],
)
def test_columns_are_found_by_name(names: list[str], text: tuple[str, ...], label: str) -> None:
    assert find_columns("a.csv", names, TASK.column_names) == Columns(text, (label,))


def test_label_types(tmp_path: Path) -> None:
    rows = [
        {"text": "a", "label": 1},
        {"text": "b", "label": 1.0},
        {"text": "c", "label": "1.0"},
        {"text": "d", "label": float("nan")},
        {"text": "e", "label": None},
        {"text": "f", "label": 10},
        {"text": "g", "label": 9},
        {"text": "\ud83d half an emoji", "label": 9},
        {"text": ["a", "list"], "label": 9},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    found, _ = load_rows(str(tmp_path / "a.jsonl"), TASK)
    assert list(found.dataset["label"]) == ["1", "1", "1", "10", "9", "9"]
    assert TASK.find_labels(found, will_be_split=False).names == ("1", "9", "10")


def test_label_names_are_sorted_alphabetically(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("label,review\npos,good\nneg,bad\nneutral,so\n", "utf-8")
    rows, _ = load_rows(str(tmp_path / "a.csv"), TASK)
    assert TASK.find_labels(rows, will_be_split=False).ids == {"neg": 0, "neutral": 1, "pos": 2}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("label,review\n1,a\n1,b\n", "at least two labels"),
        ("label,review\n1,a\n1,b\n0,c\n", "'0' appears only once, on line 4"),
    ],
)
def test_too_few_labels_or_rows_per_label(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.csv").write_text(content, "utf-8")
    rows, _ = load_rows(str(tmp_path / "a.csv"), TASK)
    with pytest.raises(DataError, match=message):
        TASK.find_labels(rows, will_be_split=True)


def test_none_and_nan_as_text_are_labels(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("label,review\nnone,a\nnull,b\nNaN,c\n", "utf-8")
    rows, _ = load_rows(str(tmp_path / "a.csv"), TASK)
    assert list(rows.dataset["label"]) == ["none", "null", "NaN"]


def test_f1_is_binary_for_two_labels_and_macro_for_more() -> None:
    from transformers import EvalPrediction

    def f1(guesses: list[int], truth: list[int], labels: int) -> float:
        prediction = EvalPrediction(predictions=np.eye(labels)[guesses], label_ids=np.array(truth))
        return TASK.compute_metrics(prediction, Labels())["f1"]

    assert f1([1, 1, 0, 0], [1, 0, 1, 0], 2) == pytest.approx(0.5)
    assert f1([0, 0, 0, 1], [0, 0, 1, 1], 2) == pytest.approx(2 / 3)
    assert f1([0, 1, 1, 2], [0, 1, 2, 2], 3) == pytest.approx((1 + 2 / 3 + 2 / 3) / 3)


@pytest.mark.parametrize("labels", [2, 3, 7])
def test_metrics_equal_those_of_scikit_learn(labels: int) -> None:
    from sklearn.metrics import accuracy_score, f1_score
    from transformers import EvalPrediction

    rng = np.random.default_rng(labels)
    for rows in (1, 2, 5, 40):
        logits, truth = rng.normal(size=(rows, labels)), rng.integers(labels, size=rows)
        found = TASK.compute_metrics(EvalPrediction(logits, truth), Labels())
        average = "binary" if labels == 2 else "macro"
        f1 = f1_score(truth, logits.argmax(-1), average=average, zero_division=0)
        assert found == pytest.approx({"accuracy": accuracy_score(truth, logits.argmax(-1)), "f1": f1})


def test_rows_with_unknown_labels_are_dropped_with_a_note() -> None:
    rows = store_rows(
        [{"text": "a", "label": label, "line": line} for line, label in enumerate("xyzx", 2)],
        {"text": str, "label": str, "line": int},
    )
    known, notes = TASK.known_rows("a.csv", rows, Labels(("x", "y")))
    assert known["line"] == [2, 3, 5]
    assert notes == ("a.csv: 1 row with labels unknown to the model dropped (line 4)",)
    assert TASK.known_rows("a.csv", rows, Labels(("x", "y", "z")))[1] == ()
    with pytest.raises(DataError, match=r"a\.csv has none of the labels of the training data: other"):
        TASK.known_rows("a.csv", rows, Labels(("other",)))


def test_a_prediction_is_the_most_probable_label() -> None:
    rows, tokenizer = TASK.rows_of([("a",), ("b",)]), object()
    inputs = ModelInputs(rows, rows, tokenizer, Labels(("no", "yes")))  # type: ignore[arg-type]
    first, second = TASK.decode([np.array([0.0, 0.0]), np.array([1000.0, 1000.0 + np.log(3)])], inputs)
    assert first.to_json() == {"label": "no", "confidence": 0.5}
    assert second.columns() == {"prediction": "yes", "confidence": 0.75}
    assert str(second) == "yes\t75.0%"


def test_texts_of_a_user_are_cleaned_and_pairs_keep_their_second_text() -> None:
    assert TASK.rows_of([(" a\x00b ",), ("c",)])["text"] == ["a b", "c"]
    pairs = TASK.rows_of([("a", "b"), ("c",)])
    assert (pairs["text"], pairs["text_pair"]) == (["a", "c"], ["b", ""])
    assert TASK.rows_of([("a", "")]).column_names == ["text"]


def test_the_config_keeps_the_labels_of_the_model_if_none_are_known() -> None:
    assert TASK.config_changes(Labels()) == {"problem_type": "single_label_classification"}
    assert TASK.config_changes(Labels(("no", "yes")))["id2label"] == {0: "no", 1: "yes"}


def test_the_pipeline_takes_a_text_or_a_pair() -> None:
    assert TASK.pipeline_call(["a"]) == 'pipe("a")'
    assert TASK.pipeline_call(["a", "b"]) == 'pipe({"text": "a", "text_pair": "b"})'
