"""Curves: numbers over the steps of a training, such as loss and F1; a single one is a dot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tightfit.report.pictures.drawing import CURVES, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Points = Sequence[tuple[float, float]]


def curves(lines: Mapping[str, Points], across: str, resumed: Sequence[float] = ()) -> Figure:
    """Lines in the order of the colours; `resumed` are the steps from which a run was gone on with."""
    figure, axes = new_figure(4.6, 2.4)
    for (name, points), colour in zip(lines.items(), CURVES * len(lines), strict=False):
        few = len(points) <= 12
        axes.plot(*zip(*points, strict=True), color=colour, label=name, marker="o" if few else "", markersize=4)
    for step in resumed:
        axes.axvline(step, color="black", alpha=0.4, linestyle=":", linewidth=1)
    axes.set(xlabel=across)
    axes.set_xlim(left=0)
    axes.grid(axis="y", alpha=0.25, color="black", linewidth=0.5)
    return figure


def series(history: Sequence[Mapping[str, float | None]], key: str) -> list[tuple[float, float]]:
    """A log's entries of one name, by step; what is no number is left out."""
    found = []
    for entry in history:
        step, value = entry.get("step"), entry.get(key)
        if step is not None and value is not None:
            found.append((float(step), float(value)))
    return found
