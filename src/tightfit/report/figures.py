"""Figures: the report's pictures with their legends, as pieces of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from tightfit.report.charts import (
    BUDGET,
    CURVES,
    KIND_COLOURS,
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
from tightfit.report.i18n import Strings
from tightfit.runs.folder import RunView
from tightfit.strategies.base import MemoryKind


class Key(NamedTuple):
    """A line of a legend."""

    colour: str
    name: str
    shape: str = ""
    """Empty for a square; `line`."""


class Picture(NamedTuple):
    """A picture, what its colours mean, and what it shows."""

    svg: Markup
    legend: list[Key]
    caption: str


def memory_picture(
    estimate: Mapping[str, Any], measured: Mapping[str, int], strings: Strings, caption: str, budget: int | None = None
) -> Picture:
    """Memory by moment and kind."""
    phases, overhead = estimate["phases"], estimate["overhead_bytes"]
    figure = memory(phases, overhead, measured, budget, strings.phase)
    seen = [kind for kinds in phases.values() for kind, size in kinds.items() if size > estimate["peak_bytes"] / 200]
    keys = kind_keys(seen, estimate, strings)
    keys += [Key("currentColor", strings("measured"), "line")] if measured else []
    keys += [Key(BUDGET, strings("budget_line"), "line")] if budget else []
    return Picture(Markup(as_svg(figure, caption)), keys, caption)


def timeline_picture(account: RunView, strings: Strings) -> Picture | None:
    """One step; None where none was kept."""
    known = account.beginning
    if known is None or known.step is None or known.estimate is None:
        return None
    step = known.step
    figure = timeline(step.kinds, step.stretches, known.estimate["overhead_bytes"], strings.phase)
    caption = strings("timeline_about")
    if step.slices > 2:
        caption += " " + strings("timeline_slices", slices=step.slices)
    return Picture(Markup(as_svg(figure, caption)), kind_keys(_seen(step.kinds), known.estimate, strings), caption)


def _seen(kinds: Mapping[str, Sequence[int]]) -> list[str]:
    """Those that are more than a hair's breadth high."""
    highest = max(max(sizes) for sizes in kinds.values())
    return [kind for kind, sizes in kinds.items() if max(sizes) > highest / 200]


def kind_keys(kinds: Sequence[str], estimate: Mapping[str, Any], strings: Strings) -> list[Key]:
    """Colours of the kinds that are there, in the order of the list."""
    own = strings.kind("process" if "CPU" in estimate["device"] else "context")
    there = [kind for kind in MemoryKind if kind.value in kinds]
    return [Key(OVERHEAD, own), *(Key(KIND_COLOURS[kind], strings.kind(kind.value)) for kind in there)]


def lengths_picture(account: RunView, strings: Strings, caption: str) -> Picture | None:
    """How long the texts are; None where that was not kept."""
    texts = account.beginning.texts if account.beginning else None
    if texts is None:
        return None
    figure = lengths(texts, (strings("tokens"), strings("texts")))
    keys = [Key(CURVES[0], strings("texts")), Key(BUDGET, strings("cut"))] if texts.truncated_rows else []
    return Picture(Markup(as_svg(figure, strings("lengths"))), keys, caption)


def loss_picture(account: RunView, strings: Strings) -> Picture | None:
    """Training and validation loss."""
    lines = {strings("training_loss"): series(account.history, "loss")}
    lines[strings("validation_loss")] = series(account.history, "eval_loss")
    return _curves(lines, account, strings, strings("loss"))


def scores_picture(account: RunView, strings: Strings, names: Sequence[str]) -> Picture | None:
    """The scores of every evaluation."""
    lines = {name.removeprefix("eval_"): series(account.history, name) for name in names if name != "eval_loss"}
    return _curves(lines, account, strings, strings("scores"))


def _curves(
    lines: Mapping[str, list[tuple[float, float]]], account: RunView, strings: Strings, caption: str
) -> Picture | None:
    there = {name: points for name, points in lines.items() if points}
    if not there:
        return None
    resumed = [step for _, step in account.starts if step]
    keys = [Key(colour, name, "line") for name, colour in zip(there, CURVES * len(there), strict=False)]
    caption = f"{caption} ({strings('resumed_mark')})" if resumed else caption
    return Picture(Markup(as_svg(curves(there, strings("steps"), resumed), caption)), keys, caption)


def peaks_picture(accounts: Sequence[RunView], strings: Strings) -> Picture | None:
    """The runs' peaks side by side."""
    measured, predicted = ([each.measured_peak for each in accounts], [each.predicted_peak for each in accounts])
    if not any([*measured, *predicted]):
        return None
    figure = peaks([each.name for each in accounts], measured, predicted)
    return Picture(Markup(as_svg(figure, strings("peaks"))), [], strings("peaks_about"))


def scatter_picture(accounts: Sequence[RunView], strings: Strings) -> Picture | None:
    """Foretold against measured, of the runs that have both."""
    both = [
        (each.measured_peak, each.predicted_peak) for each in accounts if each.measured_peak and each.predicted_peak
    ]
    if len(both) < 2:
        return None
    labels = (strings("scatter_across"), strings("scatter_up"), strings("scatter_line"))
    figure = scatter([m for m, _ in both if m], [f for _, f in both if f], labels)
    return Picture(Markup(as_svg(figure, strings("scatter"))), [], strings("scatter_about"))


def f1_picture(accounts: Sequence[RunView], strings: Strings) -> Picture | None:
    """F1 over the steps, a line for each run."""
    lines = {each.name: points for each in accounts if (points := series(each.history, "eval_f1"))}
    if len(lines) < 2 or len(lines) > len(CURVES):
        return None
    keys = [Key(colour, name, "line") for name, colour in zip(lines, CURVES, strict=False)]
    return Picture(Markup(as_svg(curves(lines, strings("steps")), strings("f1_by_step"))), keys, strings("f1_by_step"))
