"""Text classification: columns, labels, metrics and predictions."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import (
    accuracy_score,
    confusion_matrix,
    f1_score,
    matthews_corrcoef,
    precision_recall_fscore_support,
)
from transformers import EvalPrediction

from model_inputs import inputs_with
from tightfit.data.columns import Columns, find_columns
from tightfit.data.labels import Labels
from tightfit.data.row_file import store_rows
from tightfit.data.rows import load_rows
from tightfit.errors import BadInput, DataError
from tightfit.tasks.base import ModelInputs
from tightfit.tasks.classes import accuracy_interval
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
    assert TASK.find_labels(found, will_be_split=False)[0].names == ("1", "9", "10")


def test_label_names_are_sorted_alphabetically(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("label,review\npos,good\nneg,bad\nneutral,so\n", "utf-8")
    rows, _ = load_rows(str(tmp_path / "a.csv"), TASK)
    assert TASK.find_labels(rows, will_be_split=False)[0].ids == {"neg": 0, "neutral": 1, "pos": 2}


def labels_of(path: Path, labels: list[str]) -> tuple[Labels, tuple[str, ...]]:
    path.write_text("label,review\n" + "".join(f'"{label}",row {n}\n' for n, label in enumerate(labels)), "utf-8")
    rows, _ = load_rows(str(path), TASK)
    found, notes = TASK.find_labels(rows, will_be_split=True)
    assert TASK.encode_labels(rows.dataset["label"], found) == [found.id_of(label.strip()) for label in labels]
    assert None not in TASK.encode_labels(rows.dataset["label"], found)
    return found, notes


def test_labels_that_differ_in_case_or_spaces_are_one_and_that_is_said(tmp_path: Path) -> None:
    written = ["positive"] * 5 + ["Positive", " POSITIVE "] + ["very  bad"] * 2 + ["very bad"] * 3
    found, notes = labels_of(tmp_path / "a.csv", written)
    assert found.names == ("positive", "very bad")
    assert [note.split(": ", 1)[1] for note in notes] == [
        "labels that differ only in case or spaces are one label, 'positive': "
        "'positive' (5), 'Positive' (1), 'POSITIVE' (1)",
        "labels that differ only in case or spaces are one label, 'very bad': 'very bad' (3), 'very  bad' (2)",
    ]
    rows = store_rows([{"label": label, "line": 1} for label in ("Very Bad", "POSITIVE")], {"label": str, "line": int})
    assert len(set(TASK.strata(rows))) == 2
    known, dropped = TASK.known_rows("new.csv", rows, found)
    assert (len(known), dropped) == (2, ())


def test_half_stars_are_sorted_as_numbers(tmp_path: Path) -> None:
    stars = ["1", "2", "3", "4", "5", "1.5", "4.5", "10", "-1"]
    assert labels_of(tmp_path / "a.csv", stars * 2)[0].names == ("-1", "1", "1.5", "2", "3", "4", "4.5", "5", "10")


@pytest.mark.parametrize(
    ("labels", "numbers"),
    [
        ([f"{n / 7:.2f}" for n in range(60)], "60 different ones from 0 to 8.43"),
        ([f"{n / 5:.1f}" for n in range(40)] * 50, "40 different ones from 0 to 7.8"),
        ([str(n * n) for n in range(50)] * 2, "50 different ones from 0 to 2401"),
    ],
)
def test_numbers_of_a_scale_are_for_regression(tmp_path: Path, labels: list[str], numbers: str) -> None:
    message = f"the column 'label' looks like numbers to predict .{numbers}.*train it with --task text-regression"
    with pytest.raises(DataError, match=message):
        labels_of(tmp_path / "a.csv", labels)


@pytest.mark.parametrize(
    "labels",
    [[str(n) for n in range(150)] * 2, [f"{n / 2:g}" for n in range(11)] * 40, [str(n * n) for n in range(9)] * 2],
)
def test_class_ids_and_ratings_are_labels(tmp_path: Path, labels: list[str]) -> None:
    assert len(labels_of(tmp_path / "a.csv", labels)[0].names) == len(set(labels))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["wifi", "bed", "food", "wifi|bed", "bed|food"], "line 5: 'wifi|bed'; 2 of 5 labels combine 3 with '|'"),
        (["wifi", "bed", "wifi;bed", "bed;wifi"], "line 4: 'wifi;bed'; 2 of 4 labels combine 2 with ';'"),
        (["['wifi']", "['bed']", "['wifi', 'bed']", "['bed', 'wifi']"], "2 of 4 labels combine 2 with ','"),
        (["早餐", "位置", "早餐、位置", "位置、早餐"], "2 of 4 labels combine 2 with '、'"),
    ],
)
def test_combinations_are_several_labels(tmp_path: Path, labels: list[str], message: str) -> None:
    with pytest.raises(
        DataError, match=f"looks like several labels per text .*{re.escape(message)}.*--task multi-label"
    ):
        labels_of(tmp_path / "a.csv", labels * 2)


@pytest.mark.parametrize("labels", [["a|x", "a|y", "b|x", "b|y"], ["yes, sir", "no", "maybe"], ["a;b", "c"]])
def test_a_label_may_hold_a_separator(tmp_path: Path, labels: list[str]) -> None:
    assert len(labels_of(tmp_path / "a.csv", labels * 2)[0].names) == len(labels)


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


def classes_of(*names: str, positive: str | None = None) -> Labels:
    """The labels as they are found in data, with the positive one of a user or by its meaning."""
    return TASK.choose_positive(Labels(tuple(sorted(names))), positive)[0]


def test_f1_is_that_of_the_positive_label_or_macro() -> None:
    def f1(guesses: list[int], truth: list[int], labels: Labels) -> float:
        prediction = EvalPrediction(predictions=np.eye(len(labels.names))[guesses], label_ids=np.array(truth))
        return TASK.compute_metrics(prediction, inputs_with(labels))["f1"]

    assert f1([1, 1, 0, 0], [1, 0, 1, 0], classes_of("0", "1")) == pytest.approx(0.5)
    assert f1([0, 0, 0, 1], [0, 0, 1, 1], classes_of("0", "1")) == pytest.approx(2 / 3)
    assert f1([0, 0, 0, 1], [0, 0, 1, 1], classes_of("0", "1", positive="0")) == pytest.approx(4 / 5)
    assert f1([0, 0, 0, 1], [0, 0, 1, 1], classes_of("x", "y")) == pytest.approx((2 / 3 + 4 / 5) / 2)
    three = classes_of("a", "b", "c")
    assert f1([0, 1, 1, 2], [0, 1, 2, 2], three) == pytest.approx((1 + 2 / 3 + 2 / 3) / 3)
    assert f1([0, 1, 1, 2], [0, 1, 2, 2], classes_of("a", "b", "c", positive="a")) == 1


@pytest.mark.parametrize(
    "names", [("0", "1"), ("负面", "正面"), ("negative", "positive"), ("no", "yes"), ("差评", "好评")]
)
def test_the_same_predictions_score_the_same_with_any_words(names: tuple[str, str]) -> None:
    """Sorted by name, 正面 comes before 负面: the F1 of the second label was that of 负面."""
    rng, labels = np.random.default_rng(0), classes_of(*names)
    truth = rng.integers(2, size=200)
    predicted = np.where(rng.random(200) < 0.7, truth, 1)
    ids = np.array([labels.ids[name] for name in names])
    scores = TASK.score(EvalPrediction(np.eye(2)[ids[predicted]], ids[truth]), inputs_with(labels))
    assert scores["f1"] == pytest.approx(f1_score(truth, predicted))
    assert scores["f1"] != pytest.approx(f1_score(truth, predicted, pos_label=0))
    assert TASK.scoring(labels).best.title == f"F1 of '{names[1]}'"


@pytest.mark.parametrize(
    ("first", "second", "positive"),
    [
        ("0", "1", "1"),
        ("-1", "1", "1"),
        ("0", "4", "4"),
        ("LABEL_0", "LABEL_1", "LABEL_1"),
        ("False", "True", "True"),
        ("neg", "pos", "pos"),
        ("Negative", "Positive", "Positive"),
        ("bad", "good", "good"),
        ("n", "y", "y"),
        ("f", "t", "t"),
        ("f", "m", None),
        ("n", "s", None),
        ("-", "+", "+"),
        ("ham", "spam", "spam"),
        ("non-toxic", "toxic", "toxic"),
        ("not_entailment", "entailment", "entailment"),
        ("Hate Speech", "neither", "Hate Speech"),
        ("real", "fake", "fake"),
        ("normal", "zombie", "zombie"),
        ("正面", "负面", "正面"),
        ("好评", "差评", "好评"),
        ("积极", "消极", "积极"),
        ("正向", "负向", "正向"),
        ("不满意", "满意", "满意"),
        ("正常短信", "垃圾短信", "垃圾短信"),
        ("否", "是", "是"),
        ("1", "2", None),  # of some reviews 2 is the good one, of others 1 is
        ("cat", "dog", None),
        ("spam", "toxic", None),
        ("true", "fake", None),
        ("neutral", "negative", None),
    ],
)
def test_the_positive_label_is_chosen_by_its_meaning(first: str, second: str, positive: str | None) -> None:
    for names in ((first, second), (second, first)):
        labels, notes = TASK.choose_positive(Labels(names), None)
        assert labels.positive == positive
        assert bool(notes) == (positive is None)
    assert TASK.choose_positive(Labels((first, second, "other one")), None)[0].positive is None


def test_without_a_positive_label_f1_is_called_macro_f1() -> None:
    labels, (note,) = TASK.choose_positive(Labels(("cat", "dog")), None)
    assert [metric.title for metric in TASK.scoring(labels).metrics] == [
        "macro F1",
        "accuracy",
        "MCC",
        "loss",
    ]
    assert note.startswith("F1 is the mean of the F1 of 'cat' and 'dog' (macro F1)")
    chosen = TASK.scoring(labels, "macro-f1")
    assert (chosen.best.key, chosen.metrics[1].title) == ("eval_macro_f1", "accuracy")


def test_a_positive_label_of_the_user() -> None:
    labels = Labels(("Dog", "cat"))
    assert TASK.choose_positive(labels, "dog")[0].positive == "Dog"
    assert TASK.choose_positive(labels, "Cat ")[0].positive == "cat"
    with pytest.raises(BadInput, match="--positive 'cow' is no label of the data: choose from Dog, cat"):
        TASK.choose_positive(labels, "cow")


@pytest.mark.parametrize("labels", [2, 3, 7])
def test_metrics_equal_those_of_scikit_learn(labels: int) -> None:
    rng, names = np.random.default_rng(labels), tuple("abcdefg"[:labels])
    for rows in (1, 2, 5, 40, 400):
        logits, truth = rng.normal(size=(rows, labels)), rng.integers(labels, size=rows)
        predicted = logits.argmax(-1)
        for positive in (None, 0, labels - 1):
            classes = Labels(names, None if positive is None else names[positive])
            found = TASK.compute_metrics(EvalPrediction(logits, truth), inputs_with(classes))
            scored = None if positive is None else [positive]
            expected = {
                "f1": f1_score(truth, predicted, labels=scored, average="macro", zero_division=0),
                "accuracy": accuracy_score(truth, predicted),
                "macro_f1": f1_score(truth, predicted, average="macro", zero_division=0),
                "mcc": matthews_corrcoef(truth, predicted) if rows > 1 else 0,
            }
            assert found == pytest.approx(expected)


def inputs_of(texts: list[str], labels: Labels) -> ModelInputs:
    rows = store_rows(({"text": text, "line": line} for line, text in enumerate(texts, 2)), {"text": str, "line": int})
    return ModelInputs(rows, rows, object(), labels)  # type: ignore[arg-type]


@pytest.mark.parametrize("labels", [2, 3, 30])
def test_what_is_known_of_each_label_equals_scikit_learn(labels: int) -> None:
    rng, names = np.random.default_rng(labels), tuple(f"label {number:02}" for number in range(labels))
    logits, truth = rng.normal(size=(500, labels)), rng.integers(labels, size=500)
    logits[np.arange(500), truth] += 1.5
    quality = TASK.assess(EvalPrediction(logits, truth), inputs_of([f"text {i}" for i in range(500)], Labels(names)))
    predicted = logits.argmax(-1)
    columns = precision_recall_fscore_support(truth, predicted, labels=range(labels), zero_division=0)
    for each, *values in zip(quality.labels, *columns, strict=True):
        assert [each.precision, each.recall, each.f1, each.rows] == pytest.approx(values)
        assert each.predicted == (predicted == names.index(each.label)).sum()
    matrix = confusion_matrix(truth, predicted)
    assert quality.confusion == (matrix.tolist() if labels <= 20 else [])
    first = quality.confused[0]
    np.fill_diagonal(matrix, 0)
    assert first.rows == matrix.max() == matrix[names.index(first.label), names.index(first.predicted)]
    assert quality.answer is None


def test_the_worst_mistakes_are_those_that_the_model_is_sure_of() -> None:
    texts = [f"text {number} " * (100 if number == 4 else 1) for number in range(12)]
    logits = np.zeros((12, 2))
    logits[:, 1] = np.arange(12)  # sure of 1, the later the surer
    truth = np.array([0, 1] * 6)
    quality = TASK.assess(EvalPrediction(logits, truth), inputs_of(texts, Labels(("no", "yes"))))
    assert [mistake.line for mistake in quality.mistakes] == [12, 10, 8, 6, 4]
    worst, cut = quality.mistakes[0], quality.mistakes[3]
    assert (worst.text, worst.label, worst.predicted) == ("text 10", "no", "yes")
    assert worst.confidence == pytest.approx(1 / (1 + np.exp(-10)))
    assert (len(cut.text), cut.text[-1]) == (160, "…")


def test_the_texts_of_mistakes_follow_the_order_of_the_predictions() -> None:
    """Validation rows are sorted by length."""
    inputs = inputs_of(["a", "b", "c"], Labels(("no", "yes")))
    sorted_inputs = replace(inputs, tokens=inputs.tokens.select([2, 0, 1]))
    prediction = EvalPrediction(np.array([[9.0, 0], [9, 0], [0, 9]]), np.array([1, 0, 1]))
    assert [mistake.text for mistake in TASK.assess(prediction, sorted_inputs).mistakes] == ["c"]


def test_the_interval_of_accuracy() -> None:
    """Wilson's, as published for 81 of 263: 0.2553 to 0.3662 (Newcombe 1998)."""
    found = accuracy_interval(81, 263)
    assert (found.low, found.high) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert accuracy_interval(6, 6).low == pytest.approx(0.6097, abs=5e-5)
    assert accuracy_interval(6, 6).high == 1


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
    assert TASK.pipeline_call(["a"], 9) == 'pipe("a", truncation=True, max_length=9)'
    assert TASK.pipeline_call(["a", "b"], 9) == 'pipe({"text": "a", "text_pair": "b"}, truncation=True, max_length=9)'
