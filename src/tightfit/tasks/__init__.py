"""Tasks: what a model can be trained to do; a new task is one file and its entry here."""

from __future__ import annotations

from tightfit.data.columns import Columns
from tightfit.data.looks import OTHER_LOOKS, Look, Sample
from tightfit.data.sources import Source
from tightfit.errors import BadInput, DataError, suggest
from tightfit.job import Job
from tightfit.messages import Message, msg
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


def check_task(job: Job) -> Task:
    """The task of a job; BadInput if it does not have the metric or the labels that the job names."""
    task = find_task(job.task)
    task.find_metric(job.metric)
    task.check_positive(job.positive)
    return task


def check_look(task: Task, source: Source, given: Columns) -> None:
    """Raise DataError if the data looks like that of another task, or of none, unless the user named its columns."""
    if given.text and given.label:
        return
    sample = Sample(source.sample())
    if not sample.rows or (task.look and task.look.find(sample)):
        return
    for look, instead in _other_looks(task):
        if seen := look.find(sample):
            raise DataError(
                msg(
                    "{name} looks like {what} ({seen}): {instead}",
                    name=source.name,
                    what=look.what,
                    seen=seen,
                    instead=instead,
                )
            )


def _other_looks(task: Task) -> list[tuple[Look, Message]]:
    """The looks of other tasks, then of data that no task reads, and what to do with each."""
    others = [(other.name, other.look) for other in TASKS.values() if other is not task and other.look]
    found = [(look, msg("train it with --task {task}.", task=name)) for name, look in others]
    return [*found, *((look, look.instead) for look in OTHER_LOOKS)]
