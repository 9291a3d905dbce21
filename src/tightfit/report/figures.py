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
from tightfit.report.i18n import Words
from tightfit.runs.folder import Account
from tightfit.strategies.base import Kind


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
    bill: Mapping[str, Any], measured: Mapping[str, int], say: Words, caption: str, budget: int | None = None
) -> Picture:
    """Memory by moment and kind."""
    moments, overhead = bill["bill"], bill["overhead_bytes"]
    figure = memory(moments, overhead, measured, budget, say.moment)
    seen = [kind for kinds in moments.values() for kind, size in kinds.items() if size > bill["peak_bytes"] / 200]
    keys = kind_keys(seen, bill, say)
    keys += [Key("currentColor", say("measured"), "line")] if measured else []
    keys += [Key(BUDGET, say("budget_line"), "line")] if budget else []
    return Picture(Markup(as_svg(figure, caption)), keys, caption)


def timeline_picture(account: Account, say: Words) -> Picture | None:
    """One step; None where none was kept."""
    known = account.beginning
    if known is None or known.step is None or known.bill is None:
        return None
    step = known.step
    figure = timeline(step.kinds, step.stretches, known.bill["overhead_bytes"], say.moment)
    caption = say("timeline_about")
    if step.slices > 2:
        caption += " " + say("timeline_slices", slices=step.slices)
    return Picture(Markup(as_svg(figure, caption)), kind_keys(_seen(step.kinds), known.bill, say), caption)


def _seen(kinds: Mapping[str, Sequence[int]]) -> list[str]:
    """Those that are more than a hair's breadth high."""
    highest = max(max(sizes) for sizes in kinds.values())
    return [kind for kind, sizes in kinds.items() if max(sizes) > highest / 200]


def kind_keys(kinds: Sequence[str], bill: Mapping[str, Any], say: Words) -> list[Key]:
    """Colours of the kinds that are there, in the order of the list."""
    own = say.kind("process" if "CPU" in bill["device"] else "context")
    there = [kind for kind in Kind if kind.value in kinds]
    return [Key(OVERHEAD, own), *(Key(KIND_COLOURS[kind], say.kind(kind.value)) for kind in there)]


def lengths_picture(account: Account, say: Words, caption: str) -> Picture | None:
    """How long the texts are; None where that was not kept."""
    texts = account.beginning.texts if account.beginning else None
    if texts is None:
        return None
    figure = lengths(texts, (say("tokens"), say("texts")))
    keys = [Key(CURVES[0], say("texts")), Key(BUDGET, say("cut"))] if texts.cut_rows else []
    return Picture(Markup(as_svg(figure, say("lengths"))), keys, caption)


def loss_picture(account: Account, say: Words) -> Picture | None:
    """Training and validation loss."""
    lines = {say("training_loss"): series(account.history, "loss")}
    lines[say("validation_loss")] = series(account.history, "eval_loss")
    return _curves(lines, account, say, say("loss"))


def scores_picture(account: Account, say: Words, names: Sequence[str]) -> Picture | None:
    """The scores of every evaluation."""
    lines = {name.removeprefix("eval_"): series(account.history, name) for name in names if name != "eval_loss"}
    return _curves(lines, account, say, say("scores"))


def _curves(
    lines: Mapping[str, list[tuple[float, float]]], account: Account, say: Words, caption: str
) -> Picture | None:
    there = {name: points for name, points in lines.items() if points}
    if not there:
        return None
    resumed = [step for _, step in account.starts if step]
    keys = [Key(colour, name, "line") for name, colour in zip(there, CURVES * len(there), strict=False)]
    caption = f"{caption} ({say('resumed_mark')})" if resumed else caption
    return Picture(Markup(as_svg(curves(there, say("steps"), resumed), caption)), keys, caption)


def peaks_picture(accounts: Sequence[Account], say: Words) -> Picture | None:
    """The runs' peaks side by side."""
    measured, foretold = ([each.measured_peak for each in accounts], [each.foretold_peak for each in accounts])
    if not any([*measured, *foretold]):
        return None
    figure = peaks([each.name for each in accounts], measured, foretold)
    return Picture(Markup(as_svg(figure, say("peaks"))), [], say("peaks_about"))


def scatter_picture(accounts: Sequence[Account], say: Words) -> Picture | None:
    """Foretold against measured, of the runs that have both."""
    both = [(each.measured_peak, each.foretold_peak) for each in accounts if each.measured_peak and each.foretold_peak]
    if len(both) < 2:
        return None
    words = (say("scatter_across"), say("scatter_up"), say("scatter_line"))
    figure = scatter([m for m, _ in both if m], [f for _, f in both if f], words)
    return Picture(Markup(as_svg(figure, say("scatter"))), [], say("scatter_about"))


def f1_picture(accounts: Sequence[Account], say: Words) -> Picture | None:
    """F1 over the steps, a line for each run."""
    lines = {each.name: points for each in accounts if (points := series(each.history, "eval_f1"))}
    if len(lines) < 2 or len(lines) > len(CURVES):
        return None
    keys = [Key(colour, name, "line") for name, colour in zip(lines, CURVES, strict=False)]
    return Picture(Markup(as_svg(curves(lines, say("steps")), say("f1_by_step"))), keys, say("f1_by_step"))
