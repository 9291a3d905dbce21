"""The ladder: what each rung holds at its peak, by kind, beside the time of its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tightfit.ladders.record import Ladder, Row
from tightfit.report.ladder import kind_word, kinds_of
from tightfit.report.pictures.drawing import BUDGET, KIND_COLOURS, MEASURED, OVERHEAD, PREDICTED, new_figure
from tightfit.report.words import Words
from tightfit.strategy import Kind
from tightfit.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {"process": OVERHEAD, **{kind.value: colour for kind, colour in KIND_COLOURS.items()}}
_GIB = 2**30
_BAR = 0.42  # the rest of a rung's height is its name


def ladder_picture(ladder: Ladder, words: Words) -> Figure:
    """Bars by kind with the measured peak as a stroke, the budget as a line across, and the time to the right."""
    figure, _ = new_figure(5.2, 0.9 + 0.44 * len(ladder.rows))
    figure.clear()
    memory, time = figure.subplots(1, 2, sharey=True, width_ratios=(2.8, 1))
    for axes in (memory, time):
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(left=False, labelleft=False)
    _draw_memory(memory, ladder, words)
    time.patch.set_visible(False)  # a long name reaches under it
    _draw_time(time, ladder, words)
    memory.set_ylim(len(ladder.rows) - 0.5, -0.75)
    figure.legend(*memory.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=7.5)
    return figure


def _draw_memory(axes: Axes, ladder: Ladder, words: Words) -> None:
    _stack(axes, ladder, words)
    for place, row in enumerate(ladder.rows):
        name = axes.text(0, place - _BAR / 2 - 0.06, row.title, fontsize=7.5, va="bottom", ha="left")
        name.set_in_layout(False)  # it may reach under the time, where nothing else is on its line
        if row.peak:
            label = words.ladder("measured peak") if row is _first_measured(ladder) else None
            axes.plot([row.peak / _GIB] * 2, [place - 0.27, place + 0.27], color=MEASURED, linewidth=2, label=label)
        end = max(row.peak or 0, row.foretold_peak or 0) / _GIB
        said = format_bytes(row.peak) if row.peak else words.ladder("not run")
        _beside(axes, end, place, said)
    if ladder.budget_bytes:
        about = f"{words.ladder('budget')} {format_bytes(ladder.budget_bytes)}"
        axes.axvline(ladder.budget_bytes / _GIB, color=BUDGET, linestyle="--", linewidth=1.2, label=about)
    axes.set_xlabel(words.ladder("memory"), fontsize=7.5)
    axes.set_xlim(0, 1.25 * _largest(ladder) / _GIB)
    axes.tick_params(labelsize=7.5)


def _stack(axes: Axes, ladder: Ladder, words: Words) -> None:
    places, left = range(len(ladder.rows)), [0.0] * len(ladder.rows)
    for kind in ("process", *(kind.value for kind in Kind)):
        sizes = [kinds_of(row).get(kind, 0) / _GIB for row in ladder.rows]
        if any(sizes):
            axes.barh(places, sizes, _BAR, left=left, color=_COLOURS[kind], label=kind_word(kind, words), linewidth=0)
            left = [start + size for start, size in zip(left, sizes, strict=True)]


def _draw_time(axes: Axes, ladder: Ladder, words: Words) -> None:
    seconds = [row.seconds_per_step or 0.0 for row in ladder.rows]
    axes.barh(range(len(seconds)), seconds, _BAR, color=PREDICTED, alpha=0.55, linewidth=0)
    for place, value in enumerate(seconds):
        if value:
            _beside(axes, value, place, format_seconds(value))
    axes.set_xlim(0, 1.9 * max([*seconds, 1e-3]))
    axes.set_xlabel(words.ladder("time"), fontsize=7.5)
    axes.tick_params(labelsize=7.5)


def _beside(axes: Axes, end: float, place: int, said: str) -> None:
    axes.annotate(said, (end, place), (4, 0), textcoords="offset points", fontsize=7.5, va="center", ha="left")


def _first_measured(ladder: Ladder) -> Row | None:
    return next((row for row in ladder.rows if row.peak), None)


def _largest(ladder: Ladder) -> int:
    peaks = [size for row in ladder.rows for size in (row.peak, row.foretold_peak) if size]
    return max([*peaks, ladder.budget_bytes or 0, 1])
