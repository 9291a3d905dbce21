"""The pictures of README.md, from the records."""

from __future__ import annotations

import json

import records
from records import RECORDS
from tightfit.comparison.comparison import load_comparison


def accuracy_picture() -> str:
    """Foretold against measured peak, every run a dot."""
    from tightfit.report.charts import as_file_svg, scatter

    runs = records.memory_runs()
    return as_file_svg(scatter([run["measured"] for run in runs], [run["predicted"] for run in runs]))


def report_picture() -> str:
    """The demo's memory by moment and kind, foretold and measured."""
    from tightfit.report.charts import MEASURED, add_legend, as_file_svg
    from tightfit.report.charts import memory as draw
    from tightfit.report.figures import kind_keys
    from tightfit.report.i18n import Strings

    record, say = json.loads((RECORDS / "demo.json").read_text("utf-8")), Strings("en")
    estimate = record["phases"]
    figure = draw(estimate["phases"], estimate["overhead_bytes"], record["measured"], name=say.phase)
    figure.set_size_inches(6.4, 4.2)
    seen = [
        kind
        for kinds in estimate["phases"].values()
        for kind, size in kinds.items()
        if size > estimate["peak_bytes"] / 200
    ]
    keys = [(key.colour, key.name) for key in kind_keys(seen, estimate, say)]
    add_legend(figure, [*keys, (MEASURED, say("measured"))], columns=4)
    return as_file_svg(figure)


def comparison_chart() -> str:
    """BERT-Large, rung by rung."""
    from tightfit.report.charts import as_file_svg, comparison_chart
    from tightfit.report.i18n import Strings

    return as_file_svg(comparison_chart(load_comparison(RECORDS / "recipes-macbert-large.json"), Strings.of("en")))
