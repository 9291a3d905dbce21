"""Peaks: several runs side by side, each measured peak with a mark where it was foretold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tightfit.report.pictures.drawing import CURVES, MEASURED, new_figure
from tightfit.report.pictures.scale import roomy, unit_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LONGEST = 24  # letters of a name


def peaks(names: Sequence[str], measured: Sequence[int | None], foretold: Sequence[int | None]) -> Figure:
    """What is not known is left out."""
    unit, letters = unit_for(max([size for size in (*measured, *foretold) if size] or [1]))
    figure, axes = new_figure(4.6, 0.6 + 0.34 * len(names))
    axes.barh(range(len(names)), [(size or 0) / unit for size in measured], 0.55, color=CURVES[0])
    for place, size in enumerate(foretold):
        if size:
            axes.plot([size / unit] * 2, [place - 0.38, place + 0.38], color=MEASURED, linewidth=2)
    axes.set(xlabel=letters, ylim=(len(names) - 0.5, -0.5))
    axes.set_yticks(range(len(names)), [roomy(_short(name)) for name in names])
    axes.tick_params(axis="y", length=0)
    return figure


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
