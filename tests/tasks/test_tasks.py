"""What holds for every task: its words, its metrics, and that nothing else knows them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tightfit
from tightfit.data.columns import Columns
from tightfit.data.labels import Labels
from tightfit.data.row_file import store_rows
from tightfit.errors import BadInput
from tightfit.i18n import render
from tightfit.models import load_tokenizer
from tightfit.tasks import TASKS, find_task
from tightfit.tasks.base import LOSS, Task

SOURCE = Path(tightfit.__file__).parent
EVERY_TASK = pytest.mark.parametrize("task", TASKS.values(), ids=list(TASKS))


@EVERY_TASK
def test_the_words_of_a_task_are_translated_in_its_own_file(task: Task) -> None:
    learned = task.learned(["good", "bad"])
    assert {task.summary, learned.template, *(metric.title for metric in task.metrics)} <= set(task.zh)
    for text in (task.summary, learned, task.example):
        assert re.search("[一-鿿]", render(text, "zh"))
    assert render(LOSS.title, "zh") == "损失"


@EVERY_TASK
def test_the_best_metric_is_the_first_one_or_the_loss(task: Task) -> None:
    assert task.best == (task.metrics[0] if task.metrics else LOSS)
    measured = task.measured({"eval_loss": 0.5, task.best.key: 0.25, "eval_runtime": 1.0})
    assert measured[0] == (task.best, 0.25)
    assert measured[-1][0] is LOSS


@EVERY_TASK
def test_the_batch_spec_has_the_fields_of_collated_batches(task: Task, tiny_model: Path) -> None:
    tokenizer, columns = load_tokenizer(str(tiny_model)), Columns(("review",), ("label",))
    cells = [task.read({"review": text, "label": "1"}, columns)[0] for text in ("the room", "a very clean room")]
    rows = store_rows(cells, {name: type(value) for name, value in cells[0].items()})
    tokens = task.tokenize(rows, tokenizer, 16, Labels(("1",)))
    batch = task.collator(tokenizer)(tokens.dataset.__getitems__([0, 1]))
    made = task.batch_spec.make(2, 6)
    assert {name: (value.dtype, value.shape) for name, value in made.items()} == {
        name: (batch[name].dtype, batch[name].shape) for name in made
    }
    assert tokens.lengths == task.token_lengths(rows, tokenizer, 16, Labels(("1",))) == [4, 6]


def test_only_tasks_know_their_metrics() -> None:
    names = "|".join(metric.name for task in TASKS.values() for metric in task.metrics)
    mentioned = re.compile(rf"""eval_({names})\b|["']({names})["']""", re.IGNORECASE)
    files = [path for path in SOURCE.rglob("*") if path.suffix in (".py", ".html", ".jinja")]
    others = [path for path in files if path.parent.name != "tasks"]
    assert {str(path.relative_to(SOURCE)) for path in others if mentioned.search(path.read_text("utf-8"))} == set()


def test_an_unknown_task_gets_a_suggestion() -> None:
    with pytest.raises(BadInput, match=r"no task 'text-clasification': did you mean 'text-classification'\?"):
        find_task("text-clasification")
