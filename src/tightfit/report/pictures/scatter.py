"""Scatter: the peak that was foretold against the one that was measured, every run a dot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tightfit.report.pictures.drawing import CURVES, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def scatter(
    measured: Sequence[int],
    foretold: Sequence[int],
    words: tuple[str, str, str] = ("measured peak, GiB", "foretold peak, GiB", "foretold = measured"),
) -> Figure:
    """Dots on the line were foretold exactly; the band is five percent to either side."""
    from matplotlib.ticker import LogLocator, NullFormatter

    across, up = ([size / 2**30 for size in sizes] for sizes in (measured, foretold))
    figure, axes = new_figure(4.6, 4.2)
    axes.spines[["top", "right"]].set_visible(True)
    ends = [0.8 * min(*across, *up), 1.2 * max(*across, *up)]
    axes.plot(ends, ends, color="black", alpha=0.4, linewidth=1, label=words[2])
    axes.fill_between(
        ends, [0.95 * e for e in ends], [1.05 * e for e in ends], color="black", alpha=0.08, label="± 5 %"
    )
    axes.scatter(across, up, s=16, alpha=0.8, color=CURVES[0], linewidth=0)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel=words[0], ylabel=words[1])
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
    axes.legend(frameon=False, loc="upper left")
    return figure
