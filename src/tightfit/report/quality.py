"""What is known of predictions, for the terminal and for pages: the scores of each label, confusions and mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console

from tightfit.i18n import render
from tightfit.messages import Message, msg
from tightfit.tasks.classes import LABEL_HEADINGS
from tightfit.tasks.quality import Interval, Mistake, Quality, Scoring

_MAX_LABELS, _MAX_MATRIX, _MAX_NAME = 20, 12, 16
MISTAKE_HEADINGS = (msg("label"), msg("prediction"), msg("confidence"), msg("line"))
"""Of the line above each text."""


class MistakeRow(NamedTuple):
    """A wrong prediction as text."""

    label: str
    predicted: str
    confidence: str
    """Empty for a task without."""
    line: str
    text: str


def label_rows(quality: Quality) -> list[list[str]]:
    """The scores of each label; of many labels, those with the lowest F1, worst first."""
    labels = quality.labels
    if len(labels) > _MAX_LABELS:
        labels = sorted(labels, key=lambda each: each.f1)[:_MAX_LABELS]
    return [
        [
            each.label,
            f"{each.rows:,}",
            f"{each.predicted:,}",
            *(f"{value:.4f}" for value in (each.precision, each.recall, each.f1)),
        ]
        for each in labels
    ]


def about_labels(quality: Quality) -> Message | None:
    """Which labels are shown; None if it is all of them."""
    if len(quality.labels) <= _MAX_LABELS:
        return None
    return msg("The {shown} of {count} labels with the lowest F1.", shown=_MAX_LABELS, count=len(quality.labels))


def matrix(quality: Quality) -> list[list[str]]:
    """The confusion matrix with a row and a column of names; empty if there is none, or it is too large to look at."""
    if not 0 < len(quality.confusion) <= _MAX_MATRIX:
        return []
    names = [_short(each.label) for each in quality.labels]
    rows = ([name, *(f"{count:,}" for count in row)] for name, row in zip(names, quality.confusion, strict=True))
    return [["", *names], *rows]


def _short(label: str) -> str:
    return label if len(label) <= _MAX_NAME else f"{label[: _MAX_NAME - 1]}…"


def confusions(quality: Quality) -> list[Message]:
    """The most frequent confusions, where there is no matrix to read them from."""
    if matrix(quality):
        return []
    return [
        msg(
            "{rows:,} × '{label}' predicted as '{predicted}'",
            rows=each.rows,
            label=each.label,
            predicted=each.predicted,
        )
        for each in quality.confused
    ]


def mistake_rows(mistakes: Sequence[Mistake]) -> list[MistakeRow]:
    """The label, the prediction, how sure the model was, the line in the data and the beginning of the text."""
    return [
        MistakeRow(
            _answer(each.label),
            _answer(each.predicted),
            "" if each.confidence is None else f"{each.confidence:.1%}",
            "" if each.line is None else f"{each.line:,}",
            each.text,
        )
        for each in mistakes
    ]


def _answer(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def about_mistakes(quality: Quality) -> Message:
    """Which wrong predictions are shown."""
    sure = any(each.confidence is not None for each in quality.mistakes)
    return msg("Most confident wrong predictions") if sure else msg("Predictions that are furthest off")


def about_interval(interval: Interval, scoring: Scoring) -> Message | None:
    """Where the metric is likely to be on more rows."""
    metric = next((metric for metric in scoring.metrics if metric.name == interval.metric), None)
    if metric is None:
        return None
    return msg(
        "{metric}: 95 % interval {low:.4f} to {high:.4f}", metric=metric.title, low=interval.low, high=interval.high
    )


# In a terminal


def show_quality(quality: Quality, scoring: Scoring, console: Console) -> None:
    """What should be known before believing the scores, and the tables."""
    if quality.interval and (interval := about_interval(quality.interval, scoring)):
        console.print(render(interval), markup=False)
    for note in quality.notes:
        console.print(render(note), markup=False, style="yellow")
    if quality.labels:
        _show_table(
            [[render(heading) for heading in LABEL_HEADINGS], *label_rows(quality)], console, about_labels(quality)
        )
    if rows := matrix(quality):
        _show_table(rows, console, msg("Confusion matrix: a row for each label, a column for each prediction"))
    for line in confusions(quality):
        console.print(f"  {render(line)}", markup=False)
    if quality.mistakes:
        _show_mistakes(quality, console)


def _show_table(rows: list[list[str]], console: Console, title: Message | None) -> None:
    """Names on the left, numbers on the right."""
    console.print(f"\n{render(title)}" if title else "", markup=False)
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        name = first + " " * (widths[0] - cell_len(first))
        cells = (" " * (width - cell_len(cell)) + cell for cell, width in zip(others, widths[1:], strict=True))
        console.print("  ".join(("", name, *cells)), markup=False)


def _show_mistakes(quality: Quality, console: Console) -> None:
    console.print(f"\n{render(about_mistakes(quality))}", markup=False)
    for row in mistake_rows(quality.mistakes):
        line = msg("line {line}", line=row.line) if row.line else ""
        about = "  ".join(filter(None, (f"{row.label} → {row.predicted}", row.confidence, render(line))))
        console.print(f"  {about}\n    {' | '.join(row.text.splitlines())}", markup=False)
