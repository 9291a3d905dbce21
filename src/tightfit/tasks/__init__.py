"""Tasks: what a model can be trained to do, such as text classification."""

from __future__ import annotations

from tightfit.errors import BadInput, suggest
from tightfit.tasks.text_classification import TextClassification

TASKS = {task.name: task for task in (TextClassification,)}


def find_task(name: str) -> TextClassification:
    """The task with this name."""
    if name not in TASKS:
        raise BadInput(f"There is no task '{name}': {suggest(name, TASKS)}")
    return TASKS[name]()
