"""Figures of the report: chooses the data of each chart, and adds legend and caption."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from tightfit.report.charts import (
    BUDGET,
    KIND_COLOURS,
    LINE_COLOURS,
    OVERHEAD,
    as_svg,
    curves,
    lengths,
    memory,
    peaks,
    scatter,
    series,
    timeline,
)
from tightfit.report.i18n.strings import Strings
from tightfit.runs.folder import RunView
from tightfit.strategies.base import MemoryKind
from tightfit.tasks import find_task
from tightfit.tasks.base import LOSS

_MIN_SHARE = 1 / 200  # of the peak: a smaller kind is too thin to see and is left out of the legend


class Key(NamedTuple):
    """An entry of a legend."""

    colour: str
    name: str
    shape: str = ""
    """Empty for a square, or `line`."""


class Figure(NamedTuple):
    """A chart with its legend and caption."""

    svg: Markup
    legend: list[Key]
    caption: str


def memory_figure(
    estimate: Mapping[str, Any], measured: Mapping[str, int], strings: Strings, caption: str, budget: int | None = None
) -> Figure:
    """Memory by phase and kind."""
    phases, overhead = estimate["phases"], estimate["overhead_bytes"]
    chart = memory(phases, overhead, measured, budget, strings.phase)
    least = _MIN_SHARE * estimate["peak_bytes"]
    visible = [kind for kinds in phases.values() for kind, size in kinds.items() if size > least]
    keys = kind_keys(visible, estimate, strings)
    keys += [Key("currentColor", strings("measured"), "line")] if measured else []
    keys += [Key(BUDGET, strings("budget"), "line")] if budget else []
    return Figure(Markup(as_svg(chart, caption)), keys, caption)


def timeline_figure(view: RunView, strings: Strings) -> Figure | None:
    """Live memory during one step; None if it was not recorded."""
    header = view.header
    if header is None or header.step is None or header.estimate is None:
        return None
    step = header.step
    chart = timeline(step.kinds, step.segments, header.estimate["overhead_bytes"], strings.phase)
    caption = strings("timeline_about")
    if step.micro_batches > 2:
        caption = strings.paragraph([caption, strings("timeline_micro_batches", count=step.micro_batches)])
    return Figure(Markup(as_svg(chart, caption)), kind_keys(_visible(step.kinds), header.estimate, strings), caption)


def _visible(kinds: Mapping[str, Sequence[int]]) -> list[str]:
    highest = max(max(sizes) for sizes in kinds.values())
    return [kind for kind, sizes in kinds.items() if max(sizes) > _MIN_SHARE * highest]


def kind_keys(kinds: Sequence[str], estimate: Mapping[str, Any], strings: Strings) -> list[Key]:
    """Legend entries of the overhead and of these kinds of memory, in the order of `MemoryKind`."""
    overhead = strings.kind("process" if "CPU" in estimate["device"] else "context")
    shown = [kind for kind in MemoryKind if kind.value in kinds]
    return [Key(OVERHEAD, overhead), *(Key(KIND_COLOURS[kind], strings.kind(kind.value)) for kind in shown)]


def lengths_figure(view: RunView, strings: Strings, caption: str) -> Figure | None:
    """Histogram of the text lengths; None if they were not recorded."""
    stats = view.header.lengths if view.header else None
    if stats is None:
        return None
    chart = lengths(stats, (strings("tokens"), strings("texts")))
    keys = [Key(LINE_COLOURS[0], strings("texts")), Key(BUDGET, strings("truncated"))] if stats.truncated_rows else []
    return Figure(Markup(as_svg(chart, strings("lengths"))), keys, caption)


def loss_figure(view: RunView, strings: Strings) -> Figure | None:
    """Training and validation loss over the steps."""
    lines = {strings("training_loss"): series(view.history, "loss")}
    lines[strings("validation_loss")] = series(view.history, "eval_loss")
    return _curves(lines, view, strings, strings("loss"))


def scores_figure(view: RunView, strings: Strings, names: Mapping[str, str]) -> Figure | None:
    """The scores of every evaluation over the steps."""
    lines = {name: series(view.history, key) for key, name in names.items() if key != LOSS.key}
    return _curves(lines, view, strings, strings("scores"))


def _curves(
    lines: Mapping[str, list[tuple[float, float]]], view: RunView, strings: Strings, caption: str
) -> Figure | None:
    lines = {name: points for name, points in lines.items() if points}
    if not lines:
        return None
    resumed = [step for _, step in view.starts if step]
    caption = strings("resumed_mark", caption=caption) if resumed else caption
    return Figure(Markup(as_svg(curves(lines, strings("steps"), resumed), caption)), _line_keys(lines), caption)


def _line_keys(names: Sequence[str] | Mapping[str, object]) -> list[Key]:
    return [Key(colour, name, "line") for name, colour in zip(names, LINE_COLOURS * len(names), strict=False)]


def peaks_figure(views: Sequence[RunView], strings: Strings) -> Figure | None:
    """Predicted and measured peak of each run."""
    measured, predicted = [view.measured_peak for view in views], [view.predicted_peak for view in views]
    if not any([*measured, *predicted]):
        return None
    chart = peaks([view.name for view in views], measured, predicted)
    return Figure(Markup(as_svg(chart, strings("peaks"))), [], strings("peaks_about"))


def scatter_figure(views: Sequence[RunView], strings: Strings) -> Figure | None:
    """Predicted against measured peak, for runs that have both; None for fewer than two."""
    both = [(view.measured_peak, view.predicted_peak) for view in views if view.measured_peak and view.predicted_peak]
    if len(both) < 2:
        return None
    labels = (strings("scatter_x"), strings("scatter_y"), strings("scatter_line"))
    chart = scatter([measured for measured, _ in both], [predicted for _, predicted in both], labels)
    return Figure(Markup(as_svg(chart, strings("scatter"))), [], strings("scatter_about"))


def best_metric_figure(views: Sequence[RunView], strings: Strings) -> Figure | None:
    """The best metric over the steps, one line per run; None for several tasks, or more runs than there are colours."""
    tasks = {view.job.task for view in views}
    task = find_task(views[0].job.task)
    lines = {view.name: points for view in views if (points := series(view.history, task.best.key))}
    if len(tasks) > 1 or len(lines) < 2 or len(lines) > len(LINE_COLOURS):
        return None
    caption = strings("score_by_step", metric=strings.metric(task, task.best))
    return Figure(Markup(as_svg(curves(lines, strings("steps")), caption)), _line_keys(lines), caption)
