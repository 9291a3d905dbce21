"""Memory by moment: what was foretold as a bar of its kinds, what was measured as a thin dark one below it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tightfit.report.pictures.drawing import BUDGET, KIND_COLOURS, MEASURED, OVERHEAD, new_figure
from tightfit.report.pictures.scale import roomy, unit_for
from tightfit.strategy import Kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_THICK, _THIN = 0.5, 0.16


def memory(
    foretold: Mapping[str, Mapping[str, int]],
    overhead: int,
    measured: Mapping[str, int],
    budget: int | None = None,
    name: Callable[[str], str] = str,
) -> Figure:
    """`foretold` is bytes by moment and kind without the overhead, `measured` the peak of each moment."""
    moments = list(foretold) or list(measured)
    totals = [overhead + sum(kinds.values()) for kinds in foretold.values()]
    unit, letters = unit_for(max([*totals, *measured.values(), 1]))
    figure, axes = new_figure(4.6, 0.55 + 0.42 * len(moments))
    for place, moment in enumerate(moments):
        if moment in foretold:
            _bar(axes, place, foretold[moment], overhead, unit)
        if moment in measured:
            axes.barh(place + (_THICK + _THIN) / 2, measured[moment] / unit, _THIN, color=MEASURED, gid="measured")
    if budget is not None:
        axes.axvline(budget / unit, color=BUDGET, linestyle="--", linewidth=1)
    axes.set(xlabel=letters, ylim=(len(moments) - 0.4, -0.5))
    axes.set_yticks(range(len(moments)), [roomy(name(moment)) for moment in moments])
    axes.tick_params(axis="y", length=0)
    return figure


def _bar(axes: Axes, place: int, kinds: Mapping[str, int], overhead: int, unit: int) -> None:
    left = 0.0
    for colour, size in ((OVERHEAD, overhead), *((KIND_COLOURS[Kind(kind)], size) for kind, size in kinds.items())):
        if size > 0:
            axes.barh(place, size / unit, _THICK, left=left, color=colour)
            left += size / unit
