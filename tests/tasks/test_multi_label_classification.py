"""Multi-label classification: how labels are written, metrics, and a run of a tiny model."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import BAD, FILLER, GOOD
from sklearn.metrics import accuracy_score, f1_score

from model_inputs import inputs_with
from tightfit import Job, evaluate, predict, train
from tightfit.data.columns import Columns
from tightfit.data.labels import Labels
from tightfit.data.rows import load_rows
from tightfit.engine.dataset import read_data
from tightfit.errors import DataError
from tightfit.runs.record import load_run
from tightfit.tasks import with_task
from tightfit.tasks.multi_label_classification import LabelsPrediction, MultiLabelClassification

TASK = MultiLabelClassification()
NAME = TASK.name


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (["wifi", "bed"], ("wifi", "bed")),
        ([], ()),
        ([1, 2], ("1", "2")),
        ("wifi;bed", ("wifi", "bed")),
        ("wifi, bed", ("wifi", "bed")),
        ("a, b | c", ("a, b", "c")),
        ("['wifi', 'bed']", ("wifi", "bed")),
        ("无线、早餐", ("无线", "早餐")),
        ("wifi", ("wifi",)),
    ],
)
def test_labels_are_read_as_they_are_written(cell: Any, expected: tuple[str, ...]) -> None:
    assert TASK.read_label(cell) == (expected, ())


def test_wrong_labels_are_counted(tmp_path: Path) -> None:
    cells: list[Any] = [["a", "b"], None, [["a"]], {"a": 1}, ["b"]]
    rows = [{"text": f"text {number}", "labels": cell} for number, cell in enumerate(cells)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    found, _ = load_rows(str(tmp_path / "a.jsonl"), TASK)
    assert found.dataset["label"] == [("a", "b"), (), ("b",)]
    assert [note.split(": ", 1)[1] for note in found.notes] == [
        "2 rows whose labels are neither texts nor numbers dropped (lines 3, 4)",
        "1 row with an empty label, taken as having no label (line 2)",
    ]


def test_columns_of_zeros_and_ones_are_labels(tmp_path: Path) -> None:
    lines = [f"text {n},{n % 2},{n // 2 % 2},{n // 4}" for n in range(8)]
    (tmp_path / "a.csv").write_text("\n".join(["comment,toxic,obscene,insult", *lines]), "utf-8")
    job = with_task(Job(model="m", data=str(tmp_path / "a.csv")))
    assert job.task == NAME
    data = read_data(job)
    assert data.columns.label == ("toxic", "obscene", "insult")
    assert data.labels.names == ("insult", "obscene", "toxic")
    rows = [*data.split.train["label"], *data.split.validation["label"]]
    assert sorted(rows)[0] == ()
    assert ("toxic", "obscene", "insult") in rows
    (tmp_path / "b.csv").write_text("text,a,b\nx,1,2\ny,0,1.0\nz,true,\n", "utf-8")
    found, _ = load_rows(str(tmp_path / "b.csv"), TASK, Columns(("text",), ("a", "b")))
    assert found.dataset["label"] == [("b",), ("a",)]
    assert found.notes[0].endswith("1 row with another value than 0 or 1 in a label column dropped (line 2)")


def test_combined_labels_of_classification_point_to_the_task(tmp_path: Path) -> None:
    labels = ["wifi|bed", "wifi", "bed", "wifi|bed|food", "food", "food|bed"] * 3
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"t {n},{x}\n" for n, x in enumerate(labels)), "utf-8")
    with pytest.raises(DataError, match=r"several labels per text .*train it with --task multi-label-classification"):
        read_data(Job(model="m", data=str(tmp_path / "a.csv")))
    assert read_data(Job(model="m", data=str(tmp_path / "a.csv"), task=NAME)).labels.names == ("bed", "food", "wifi")


def test_the_same_labels_everywhere_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x", "labels": ["a", "b"]}\n' * 3, "utf-8")
    with pytest.raises(DataError, match=r"all 3 rows have the same labels \(a, b\)"):
        TASK.find_labels(load_rows(str(tmp_path / "a.jsonl"), TASK)[0], will_be_split=True)


@pytest.mark.parametrize("labels", [2, 5, 30])
def test_metrics_equal_those_of_scikit_learn(labels: int) -> None:
    from transformers import EvalPrediction

    rng, names = np.random.default_rng(labels), tuple(f"label {number:02}" for number in range(labels))
    truth = (rng.random((200, labels)) < 0.3).astype(np.float32)
    logits = rng.normal(size=(200, labels)) + truth
    found = TASK.score(EvalPrediction(logits, truth), inputs_with(Labels(names)))
    predicted = logits >= 0
    assert found["f1"] == pytest.approx(f1_score(truth, predicted, average="micro"))
    assert found["macro_f1"] == pytest.approx(f1_score(truth, predicted, average="macro"))
    assert found["accuracy"] == pytest.approx(accuracy_score(truth, predicted))
    everything = f1_score(truth, np.ones_like(truth), average="micro")
    assert found["constant_f1"] >= everything


def test_a_run_learns_several_labels(tiny_model: Path, tmp_path: Path) -> None:
    picker, rows = random.Random(0), []
    for _ in range(80):
        labels = [label for label in ("bad", "good") if picker.random() < 0.5]
        words = picker.choices(FILLER, k=picker.randint(3, 15))
        words += [picker.choice(GOOD if label == "good" else BAD) for label in labels for _ in range(2)]
        rows.append({"text": " ".join(words), "labels": labels})
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    data = str(tmp_path / "a.jsonl")
    job = Job(model=str(tiny_model), data=data, batch_size=8, max_length=32, epochs=12, learning_rate=5e-3)
    train(job, ["micro-batch:size=4"], out=tmp_path / "run", device="cpu", quiet=True)
    run = load_run(tmp_path / "run")
    assert run.job.task == NAME
    assert run.metrics["eval_f1"] > max(0.7, run.metrics["eval_constant_f1"])
    scores = evaluate(tmp_path / "run", device="cpu").metrics
    del scores["eval_loss"]  # its batches have other rows
    assert scores == pytest.approx({name: run.metrics[name] for name in scores})
    both, neither = predict(tmp_path / "run", ["the clean dirty lovely rude room", "the bed it had"], device="cpu")
    assert isinstance(both, LabelsPrediction)
    assert isinstance(neither, LabelsPrediction)
    assert neither.labels == ()
    assert sum(both.confidences.values()) > sum(neither.confidences.values())
