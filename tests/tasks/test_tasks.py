"""What holds for every task: its words, its metrics, and that nothing else knows them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tightfit
from model_inputs import inputs_with
from tightfit.data.columns import Columns
from tightfit.data.labels import Labels
from tightfit.data.row_file import store_rows
from tightfit.errors import BadInput
from tightfit.i18n import render
from tightfit.models import load_tokenizer
from tightfit.tasks import TASKS, find_task
from tightfit.tasks.base import Task
from tightfit.tasks.quality import LOSS

SOURCE = Path(tightfit.__file__).parent
EVERY_TASK = pytest.mark.parametrize("task", TASKS.values(), ids=list(TASKS))
WITH_OUTPUTS = {name: task for name, task in TASKS.items() if task.reads_logits}


@EVERY_TASK
def test_the_words_of_a_task_are_translated_in_its_own_file(task: Task) -> None:
    learned = task.learned(["good", "bad"])
    assert {task.summary, learned.template, *(metric.title for metric in task.metrics)} <= set(task.zh)
    for text in (task.summary, learned, task.example):
        assert re.search("[一-鿿]", render(text, "zh"))
    assert render(LOSS.title, "zh") == "损失"


@EVERY_TASK
def test_the_best_metric_is_the_first_one_or_the_one_that_the_job_names(task: Task) -> None:
    assert task.scoring(Labels()).best == (task.metrics[0] if task.metrics else LOSS)
    for metric in (*task.metrics, LOSS):
        for written in (metric.option, metric.name, metric.key, metric.option.upper()):
            assert task.find_metric(written) == metric
        scoring = task.scoring(Labels(("a", "b", "c")), metric.option)
        assert scoring.best.name == metric.name
        assert len({each.title for each in scoring.metrics}) == len(scoring.metrics)
        measured = scoring.measured({"eval_loss": 0.5, metric.key: 0.25, "eval_runtime": 1.0})
        assert measured[0] == (scoring.best, 0.25)
        assert measured[-1][0] is LOSS


@EVERY_TASK
def test_a_metric_that_the_task_does_not_have_gets_a_suggestion(task: Task) -> None:
    with pytest.raises(BadInput, match=f"{task.name} has no metric 'acuracy': "):
        task.find_metric("acuracy")


@pytest.mark.parametrize("name", ["text-classification", "text-regression"])
def test_a_constant_answer_is_scored_beside_the_model(name: str) -> None:
    """No model without any knowledge of the texts does better, and its metrics are those of the same task."""
    from transformers import EvalPrediction

    task = find_task(name)
    truth = np.array([0, 1, 1, 1, 0, 1, 1, 1]).astype("float32" if task.name == "text-regression" else "int64")
    width = 1 if task.name == "text-regression" else 2
    outputs = np.random.default_rng(0).normal(size=(8, width)).astype("float32")
    scores = task.score(EvalPrediction(outputs, truth), inputs_with(Labels(("0", "1"), "1")))
    names = {metric.name for metric in task.metrics}
    assert set(scores) == names | {f"constant_{name}" for name in names}
    if task.name == "text-classification":
        assert scores["constant_accuracy"] == 0.75
        assert scores["constant_f1"] == pytest.approx(2 * 6 / 14)
        assert scores["constant_mcc"] == 0
    else:
        assert scores["constant_mse"] == pytest.approx(truth.var())
        assert scores["constant_pearson"] == 0


def test_among_classes_of_equal_size_the_positive_one_is_the_majority_class() -> None:
    from transformers import EvalPrediction

    task, truth = find_task("text-classification"), np.array([0, 1, 1, 0])
    outputs = np.eye(2, dtype="float32")[truth]
    for positive in ("0", "1"):
        labels = Labels(("0", "1"), positive)
        assert task.score(EvalPrediction(outputs, truth), inputs_with(labels))["constant_f1"] == pytest.approx(2 / 3)


TEXTS = ("the room", "a very clean room")
ROWS: dict[str, tuple[Columns, list[dict[str, Any]]]] = {
    "multi-label-classification": (
        Columns(("review",), ("label",)),
        [{"review": text, "label": ["1", "2"]} for text in TEXTS],
    ),
    "token-classification": (
        Columns(("tokens",), ("tags",)),
        [{"tokens": text.split(), "tags": ["1"] * len(text.split())} for text in TEXTS],
    ),
    "question-answering": (
        Columns(("question", "context"), ("answers",)),
        [{"question": "the", "context": text, "answers": "room"} for text in TEXTS],
    ),
}
"""The columns and two rows of tasks that do not read a text and a label."""


@pytest.mark.parametrize("task", WITH_OUTPUTS.values(), ids=list(WITH_OUTPUTS))
def test_the_batch_spec_has_the_fields_of_collated_batches(task: Task, tiny_model: Path) -> None:
    labelled = Columns(("review",), ("label",)), [{"review": text, "label": "1"} for text in TEXTS]
    (columns, given), labels = ROWS.get(task.name, labelled), Labels(("1", "2"))
    tokenizer, cells = load_tokenizer(str(tiny_model)), [task.read(row, columns)[0] for row in given]
    rows = store_rows(cells, {name: type(value) for name, value in cells[0].items()})
    tokens = task.tokenize(rows, tokenizer, 32, labels)
    batch = task.collator(tokenizer)(task.model_inputs(tokens.dataset).__getitems__([0, 1]))
    made = task.batch_spec_for(labels).make(2, max(tokens.lengths))
    assert set(task.label_names) <= set(made)
    assert {name: (value.dtype, value.shape) for name, value in made.items()} == {
        name: (batch[name].dtype, batch[name].shape) for name in made
    }
    assert tokens.lengths == task.token_lengths(rows, tokenizer, 32, labels)


def test_only_tasks_know_their_metrics() -> None:
    names = "|".join(metric.name for task in TASKS.values() for metric in task.metrics)
    mentioned = re.compile(rf"""eval_({names})\b|["']({names})["']""", re.IGNORECASE)
    files = [path for path in SOURCE.rglob("*") if path.suffix in (".py", ".html", ".jinja")]
    others = [path for path in files if path.parent.name != "tasks"]
    assert {str(path.relative_to(SOURCE)) for path in others if mentioned.search(path.read_text("utf-8"))} == set()


def test_an_unknown_task_gets_a_suggestion() -> None:
    with pytest.raises(BadInput, match=r"no task 'text-clasification': did you mean 'text-classification'\?"):
        find_task("text-clasification")
