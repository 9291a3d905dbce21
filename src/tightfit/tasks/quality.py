"""Quality: the metrics of a task, and what else is known of a model's predictions on rows with labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from tightfit.messages import Message, msg

CONSTANT = "constant_"
"""Before the name of a metric: its value for a model that gives the same answer to every row."""


@dataclass(frozen=True)
class Metric:
    """A figure that says how good a model is."""

    name: str
    """Its name in `compute_metrics`."""
    title: Message
    """Its name in reports."""
    greater_is_better: bool = True

    @property
    def key(self) -> str:
        """Its name in logs and records."""
        return f"eval_{self.name}"

    @property
    def constant_name(self) -> str:
        """The name of its value for a model that gives the same answer to every row."""
        return f"{CONSTANT}{self.name}"

    @property
    def constant_key(self) -> str:
        """That name in logs and records."""
        return f"eval_{self.constant_name}"

    @property
    def option(self) -> str:
        """Its name on the command line."""
        return self.name.replace("_", "-")


LOSS = Metric("loss", msg("loss"), greater_is_better=False)
"""The metric that every task has."""
Scores = list[tuple[Metric, float]]
_IN_A_LINE = 2


@dataclass(frozen=True)
class Scoring:
    """How a run is scored: the metrics of its task, titled for its labels, and the one that chooses the checkpoint."""

    metrics: tuple[Metric, ...]
    """The best metric first, the loss last unless it is the best."""
    constant: Message
    """What a model does that gives the same answer to every row."""

    @property
    def best(self) -> Metric:
        """The metric that chooses the best checkpoint."""
        return self.metrics[0]

    @property
    def own(self) -> tuple[Metric, ...]:
        """Without the loss, unless it chooses the best checkpoint."""
        return tuple(metric for metric in self.metrics if metric is not LOSS or metric is self.best)

    def measured(self, metrics: Mapping[str, float]) -> Scores:
        """All metrics that a record has, with their values."""
        return [(metric, metrics[metric.key]) for metric in self.metrics if metrics.get(metric.key) is not None]

    def in_a_line(self, metrics: Mapping[str, float]) -> Scores:
        """The first metrics and the loss."""
        shown = (*self.own[:_IN_A_LINE], LOSS)
        return [(metric, value) for metric, value in self.measured(metrics) if metric in shown]

    def of_constant(self, metrics: Mapping[str, float], scores: Scores | None = None) -> Scores:
        """The values that always giving the same answer has, of all metrics or of those with these scores."""
        of = self.metrics if scores is None else [metric for metric, _ in scores]
        return [(metric, metrics[metric.constant_key]) for metric in of if metrics.get(metric.constant_key) is not None]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class LabelScore(_Value):
    """How well one class is found."""

    label: str
    rows: int
    """Rows that have the label."""
    predicted: int
    """Rows that got it."""
    precision: float
    recall: float
    f1: float


class Confusion(_Value):
    """Rows of one class that got another."""

    label: str
    predicted: str
    rows: int


class Mistake(_Value):
    """A row with a wrong prediction."""

    text: str
    """Cut to a length; the texts of a pair on lines of their own."""
    line: int | None
    """In the data file."""
    label: str | float
    predicted: str | float
    confidence: float | None = None
    """0 to 1; None for a task without."""


class Interval(_Value):
    """Where a metric is likely to be on more rows of the same kind: with a probability of 95 %."""

    metric: str
    low: float
    high: float


class Quality(_Value):
    """What is known of the predictions for some rows beyond the metrics, as far as the task has it."""

    rows: int
    constant: str
    """The answer that scores best among those that do not depend on the text: the majority class, the mean number."""
    answer: str | None = None
    """The answer of the model, if all rows got the same."""
    interval: Interval | None = None
    labels: list[LabelScore] = []
    """One for each class."""
    confusion: list[list[int]] = []
    """Rows by label and by prediction, in the order of `labels`; empty for many classes."""
    confused: list[Confusion] = []
    """The most frequent confusions."""
    mistakes: list[Mistake] = []
    """The wrong predictions that the model was most confident of, or that are furthest off."""
    notes: list[Message] = []
    """What to know before believing the scores."""


MISTAKES = 5
"""How many wrong predictions are kept."""
_MAX_CHARACTERS = 160


def shorten(text: str) -> str:
    """The beginning of a text on one line."""
    text = " ".join(text.split())
    return text if len(text) <= _MAX_CHARACTERS else f"{text[: _MAX_CHARACTERS - 1]}…"
