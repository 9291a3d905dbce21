"""The pictures in docs/, from the records."""

from __future__ import annotations

import records
import source


def accuracy_picture() -> str:
    """Predicted against measured peak, one dot per run."""
    runs = records.memory_runs()
    return source.as_svg(source.scatter_figure([run.measured for run in runs], [run.predicted for run in runs]))


def report_picture() -> str:
    """The demo's memory by phase and kind, predicted and measured."""
    demo = records.demo()
    figure = source.phases_figure(demo.phases, demo.estimate["overhead_bytes"], demo.measured)
    figure.set_size_inches(6.4, 4.2)
    smallest = demo.estimate["peak_bytes"] / 200
    seen = [kind for kinds in demo.phases.values() for kind, size in kinds.items() if size > smallest]
    source.add_legend(figure, source.kind_colours(seen, demo.estimate))
    return source.as_svg(figure)


def comparison_picture() -> str:
    """BERT-Large, one bar per recipe."""
    return source.as_svg(source.comparison_figure(records.path_of(records.RECIPES_LARGE)))
