"""Tasks: what a model can be trained to do; a new task is one file and its entry here."""

from __future__ import annotations

from tightfit.data.columns import Columns
from tightfit.data.format_detection import UNSUPPORTED_FORMATS, DatasetFormat, Sample
from tightfit.data.rows import open_data
from tightfit.data.sources import Source
from tightfit.errors import BadInput, DataError, suggest
from tightfit.job import Job
from tightfit.messages import Message, msg
from tightfit.tasks.base import Task
from tightfit.tasks.instruction_tuning import InstructionTuning
from tightfit.tasks.language_modeling import LanguageModeling, MaskedLanguageModeling
from tightfit.tasks.multi_label_classification import MultiLabelClassification
from tightfit.tasks.question_answering import QuestionAnswering
from tightfit.tasks.text_classification import TextClassification
from tightfit.tasks.text_regression import TextRegression
from tightfit.tasks.text_to_text import TextToText
from tightfit.tasks.token_classification import TokenClassification

_ALL: tuple[type[Task], ...] = (
    TextClassification,
    TextRegression,
    TokenClassification,
    QuestionAnswering,
    MultiLabelClassification,
    TextToText,
    InstructionTuning,
    LanguageModeling,
    MaskedLanguageModeling,
)
"""In the order of the list, and in which data is compared with their formats."""

TASKS: dict[str, Task] = {task.name: task() for task in _ALL}


def find_task(name: str) -> Task:
    """The task with this name."""
    if name not in TASKS:
        raise BadInput(msg("There is no task '{name}': {suggestion}", name=name, suggestion=suggest(name, TASKS)))
    return TASKS[name]


def with_task(job: Job) -> Job:
    """The job with the task that its data is plainly for, unless it names its task or its columns."""
    name = find_task(_task_of_data(job)).for_model(job.model)
    return job if name == job.task else job.model_copy(update={"task": name})


def _task_of_data(job: Job) -> str:
    formats = {n: t.data_format for n, t in TASKS.items() if t.data_format and t.has_metric(job.metric)}
    if not formats or "task" in job.model_fields_set or (job.text and job.label):
        return job.task
    try:
        source, _ = open_data(job.data, find_task(job.task), Columns.of(job.text, job.label))
        sample = Sample(source.sample())
    except BadInput:
        return job.task  # reported when the data is read, after the options have been checked
    return next((name for name, each in formats.items() if sample.rows and each.find(sample)), job.task)


def task_of(job: Job) -> Task:
    """The task of a job, with the job's settings for it."""
    return find_task(job.task).for_job(job)


def check_task(job: Job) -> Task:
    """The task of a job; BadInput if it does not have the metric or the labels that the job names."""
    task = task_of(job)
    task.find_metric(job.metric)
    task.check_positive(job.positive)
    return task


def check_format(task: Task, source: Source, given: Columns) -> None:
    """Raise DataError if the data looks like that of another task, or of none, unless the user named its columns."""
    if given.text and given.label:
        return
    sample = Sample(source.sample())
    if not sample.rows or (task.data_format and task.data_format.find(sample)):
        return
    for each, instead in _other_formats(task):
        if seen := each.find(sample):
            raise DataError(
                msg(
                    "{name} looks like {what} ({seen}): {instead}",
                    name=source.name,
                    what=each.what,
                    seen=seen,
                    instead=instead,
                )
            )


def _other_formats(task: Task) -> list[tuple[DatasetFormat, Message]]:
    """The formats of other tasks, then of data that no task reads, and what to do with each."""
    others = [other.data_format for other in TASKS.values() if other is not task and other.data_format]
    return [(each, each.instead) for each in (*others, *UNSUPPORTED_FORMATS)]
