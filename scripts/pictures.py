"""The pictures of README.md, from the records."""

from __future__ import annotations

import json

import records
from records import RECORDS
from tightfit.comparison.comparison import load_ladder


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
    from tightfit.report.i18n import Words

    record, say = json.loads((RECORDS / "demo.json").read_text("utf-8")), Words("en")
    bill = record["bill"]
    figure = draw(bill["bill"], bill["overhead_bytes"], record["measured"], name=say.moment)
    figure.set_size_inches(6.4, 4.2)
    seen = [kind for kinds in bill["bill"].values() for kind, size in kinds.items() if size > bill["peak_bytes"] / 200]
    keys = [(key.colour, key.name) for key in kind_keys(seen, bill, say)]
    add_legend(figure, [*keys, (MEASURED, say("measured"))], columns=4)
    return as_file_svg(figure)


def ladder_picture() -> str:
    """BERT-Large, rung by rung."""
    from tightfit.report.charts import as_file_svg, ladder_picture
    from tightfit.report.i18n import Words

    return as_file_svg(ladder_picture(load_ladder(RECORDS / "rungs-macbert-large.json"), Words.of("en")))
