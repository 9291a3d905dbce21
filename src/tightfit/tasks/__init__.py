"""Tasks: what a model can be trained to do; a new task is one file and its entry here."""

from __future__ import annotations

from tightfit.errors import BadInput, suggest
from tightfit.messages import msg
from tightfit.tasks.base import Task
from tightfit.tasks.text_classification import TextClassification
from tightfit.tasks.text_regression import TextRegression

_ALL: tuple[type[Task], ...] = (TextClassification, TextRegression)

TASKS: dict[str, Task] = {task.name: task() for task in _ALL}


def find_task(name: str) -> Task:
    """The task with this name."""
    if name not in TASKS:
        raise BadInput(msg("There is no task '{name}': {suggestion}", name=name, suggestion=suggest(name, TASKS)))
    return TASKS[name]
