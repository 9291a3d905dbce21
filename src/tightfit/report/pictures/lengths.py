"""Lengths: how many texts are how long; the last bar holds those that were cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tightfit.report.pictures.drawing import BUDGET, CURVES, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tightfit.beginning import Texts


def lengths(texts: Texts, words: tuple[str, str] = ("tokens", "texts")) -> Figure:
    """One bar for so many tokens; of the last one the part that was cut has a colour of its own."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = new_figure(4.6, 2.2)
    starts = [1 + number * texts.width for number in range(len(texts.rows))]
    axes.bar(starts, texts.rows, texts.width * 0.9, align="edge", color=CURVES[0])
    if texts.cut_rows:
        axes.bar(starts[-1:], [texts.cut_rows], texts.width * 0.9, align="edge", color=BUDGET)
    axes.set(xlabel=words[0], ylabel=words[1], xlim=(0, texts.limit + texts.width))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    return figure
