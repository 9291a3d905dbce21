"""Figures of the report: chooses the data of each chart, and adds legend and caption."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from tightfit.i18n import Render
from tightfit.messages import Message, in_sequence, msg
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
from tightfit.report.names import kind_name, memory_name, phase_name
from tightfit.runs.folder import RunView
from tightfit.strategies.base import MemoryKind
from tightfit.tasks.quality import LOSS

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
    caption: Message


def memory_figure(
    estimate: Mapping[str, Any], measured: Mapping[str, int], text: Render, caption: Message, budget: int | None = None
) -> Figure:
    """Memory by phase and kind."""
    phases, overhead = estimate["phases"], estimate["overhead_bytes"]
    context = overhead if estimate["libraries"] else 0  # is not part of what torch measures
    chart = memory(phases, overhead, measured, budget, lambda phase: text(phase_name(phase)), context)
    least = _MIN_SHARE * estimate["peak_bytes"]
    visible = [kind for kinds in phases.values() for kind, size in kinds.items() if size > least]
    keys = kind_keys(visible, estimate)
    keys += [Key("currentColor", msg("measured"), "line")] if measured else []
    keys += [Key(BUDGET, msg("budget"), "line")] if budget else []
    return Figure(Markup(as_svg(chart, text(caption))), keys, caption)


def timeline_figure(view: RunView, text: Render) -> Figure | None:
    """Live memory during one step; None if it was not recorded."""
    header = view.header
    if header is None or header.step is None or header.estimate is None:
        return None
    step, overhead = header.step, header.estimate["overhead_bytes"]
    chart = timeline(step.kinds, step.segments, overhead, lambda phase: text(phase_name(phase)))
    caption = _about_timeline(step.micro_batches)
    return Figure(Markup(as_svg(chart, text(caption))), kind_keys(_visible(step.kinds), header.estimate), caption)


def _about_timeline(micro_batches: int) -> Message:
    caption = msg(
        "Live tensors by kind, from the simulation of the batch with the longest texts. "
        "The x-axis is the order of operations, not time."
    )
    if micro_batches <= 2:
        return caption
    shown = msg("A step has up to {count} micro-batches; the first two are shown.", count=micro_batches)
    return in_sequence(caption, shown)


def _visible(kinds: Mapping[str, Sequence[int]]) -> list[str]:
    highest = max(max(sizes) for sizes in kinds.values())
    return [kind for kind, sizes in kinds.items() if max(sizes) > _MIN_SHARE * highest]


def kind_keys(kinds: Sequence[str], estimate: Mapping[str, Any]) -> list[Key]:
    """Legend entries of the overhead and of these kinds of memory, in the order of `MemoryKind`."""
    overhead = kind_name("process" if "CPU" in estimate["device"] else "context")
    shown = [kind for kind in MemoryKind if kind.value in kinds]
    return [Key(OVERHEAD, overhead), *(Key(KIND_COLOURS[kind], kind_name(kind.value)) for kind in shown)]


def lengths_figure(view: RunView, text: Render, caption: Message) -> Figure | None:
    """Histogram of the text lengths; None if they were not recorded."""
    stats = view.header.lengths if view.header else None
    if stats is None:
        return None
    chart = lengths(stats, (text(msg("tokens")), text(msg("texts"))))
    keys = [Key(LINE_COLOURS[0], msg("texts")), Key(BUDGET, msg("truncated"))] if stats.truncated_rows else []
    return Figure(Markup(as_svg(chart, text(msg("Text lengths")))), keys, caption)


def loss_figure(view: RunView, text: Render) -> Figure | None:
    """Training and validation loss over the steps."""
    lines = {text(msg("training loss")): series(view.history, "loss")}
    lines[text(msg("validation loss"))] = series(view.history, "eval_loss")
    return _curves(lines, view, text, msg("Loss"))


def scores_figure(view: RunView, text: Render, names: Mapping[str, str]) -> Figure | None:
    """The scores of every evaluation over the steps."""
    lines = {text(name): series(view.history, key) for key, name in names.items() if key != LOSS.key}
    return _curves(lines, view, text, msg("Validation scores"))


def _curves(
    lines: Mapping[str, list[tuple[float, float]]], view: RunView, text: Render, caption: Message
) -> Figure | None:
    lines = {name: points for name, points in lines.items() if points}
    if not lines:
        return None
    resumed = [step for _, step in view.starts if step]
    caption = msg("{caption} (dotted line: resumed here)", caption=caption) if resumed else caption
    chart = curves(lines, text(msg("steps")), resumed)
    return Figure(Markup(as_svg(chart, text(caption))), _line_keys(lines), caption)


def _line_keys(names: Sequence[str] | Mapping[str, object]) -> list[Key]:
    return [Key(colour, name, "line") for name, colour in zip(names, LINE_COLOURS * len(names), strict=False)]


def peaks_figure(views: Sequence[RunView], text: Render) -> Figure | None:
    """Predicted and measured peak of each run."""
    measured, predicted = [view.measured_peak for view in views], [view.predicted_peak for view in views]
    if not any([*measured, *predicted]):
        return None
    chart = peaks([view.name for view in views], measured, predicted)
    title = msg("Peak {memory}", memory=memory_name(*(view.device for view in views)))
    return Figure(Markup(as_svg(chart, text(title))), [], msg("Bars: measured. Marks: predicted."))


def scatter_figure(views: Sequence[RunView], text: Render) -> Figure | None:
    """Predicted against measured peak, for runs that have both; None for fewer than two."""
    both = [(view.measured_peak, view.predicted_peak) for view in views if view.measured_peak and view.predicted_peak]
    if len(both) < 2:
        return None
    labels = (text(msg("measured peak, GiB")), text(msg("predicted peak, GiB")), text(msg("predicted = measured")))
    chart = scatter([measured for measured, _ in both], [predicted for _, predicted in both], labels)
    caption = msg("One dot per run; on the line, the prediction is exact.")
    return Figure(Markup(as_svg(chart, text(msg("Predicted and measured peaks")))), [], caption)


def best_metric_figure(views: Sequence[RunView], text: Render) -> Figure | None:
    """The best metric over the steps, one line per run; None for several metrics or more runs than colours."""
    metrics, best = {view.scoring.best for view in views}, views[0].scoring.best
    lines = {view.name: points for view in views if (points := series(view.history, best.key))}
    if len(metrics) > 1 or len(lines) < 2 or len(lines) > len(LINE_COLOURS):
        return None
    caption = msg("{metric} on the validation examples", metric=best.title)
    chart = curves(lines, text(msg("steps")))
    return Figure(Markup(as_svg(chart, text(caption))), _line_keys(lines), caption)
