"""Timeline: one step, what is alive when, by kind; from left to right the operations, not the seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tightfit.report.pictures.drawing import KIND_COLOURS, OVERHEAD, new_figure
from tightfit.report.pictures.scale import unit_for
from tightfit.strategy import Kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tightfit.beginning import Stretch

_WIDE_ENOUGH = 0.09  # of the picture, for a moment's name


def timeline(
    kinds: Mapping[str, Sequence[int]],
    stretches: Sequence[Stretch],
    overhead: int = 0,
    name: Callable[[str], str] = str,
) -> Figure:
    """`kinds` is live bytes at every point; the overhead lies below all of them."""
    points = len(next(iter(kinds.values())))
    layers = [[overhead] * points, *kinds.values()]
    unit, letters = unit_for(max(sum(sizes) for sizes in zip(*layers, strict=True)))
    figure, axes = new_figure(4.6, 2.7)
    axes.stackplot(
        range(points),
        [[size / unit for size in sizes] for sizes in layers],
        colors=[OVERHEAD, *(KIND_COLOURS[Kind(kind)] for kind in kinds)],
        step="mid",
        linewidth=0,
    )
    axes.set(xlim=(0, points - 1), ylabel=letters, xticks=[])
    axes.set_ylim(bottom=0)
    _moments(axes, [each for each in stretches if each.moment != "between"], points, name)
    return figure


def _moments(axes: Axes, stretches: Sequence[Stretch], points: int, name: Callable[[str], str]) -> None:
    for number, each in enumerate(stretches):
        if number:
            axes.axvline(each.start, color="black", alpha=0.35, linewidth=0.8)
        if (each.end - each.start) / points >= _WIDE_ENOUGH:
            middle = (each.start + each.end) / 2 / (points - 1)
            axes.text(middle, 1.02, name(each.moment), transform=axes.transAxes, ha="center", va="bottom", fontsize=9)
