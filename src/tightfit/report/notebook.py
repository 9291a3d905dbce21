"""Notebook: bills and runs show themselves as tables with the picture that belongs to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tightfit.beginning import load_beginning
from tightfit.record import Run
from tightfit.rehearsal.bill import Bill
from tightfit.report.figures import memory_picture
from tightfit.report.page import templates
from tightfit.report.words import Words
from tightfit.strategy import Kind
from tightfit.units import format_bytes, format_count, format_seconds

_SAY = Words("en")


def bill_as_html(bill: Bill) -> str:
    """Bytes by moment and kind."""
    kinds = [kind for kind in Kind if max(sizes.get(kind, 0) for sizes in bill.moments.values()) > bill.peak / 200]
    rows = [
        [moment, *(format_bytes(size) for size in (bill.overhead + sum(sizes.values()), *(sizes[k] for k in kinds)))]
        for moment, sizes in bill.moments.items()
    ]
    trained = f"{format_count(bill.trainable_parameters)} of {format_count(bill.parameters)} parameters train"
    return _render(
        title=f"Peak {format_bytes(bill.peak)} in {bill.moment} on {bill.device.title}; {trained}",
        headings=["moment", "all", *(kind.value for kind in kinds)],
        rows=rows,
        picture=memory_picture(bill.to_json(), {}, _SAY, _SAY("by_kind_of")),
    )


def run_as_html(run: Run) -> str:
    """What came out, and memory by moment, foretold beside measured."""
    known = load_beginning(Path(run.folder))
    bill = known.bill if known else None
    foretold = run.predicted.moments or {}
    rows = [
        [moment, format_bytes(foretold[moment]) if moment in foretold else "–", format_bytes(size)]
        for moment, size in run.measured.moments.items()
    ]
    return _render(
        title=_in_a_line(run),
        headings=["moment", "foretold", "measured"],
        rows=rows,
        picture=memory_picture(bill, run.measured.moments, _SAY, _SAY("by_kind")) if bill else None,
    )


def _in_a_line(run: Run) -> str:
    scores = [
        f"{name} {run.metrics[f'eval_{name}']:.4f}" for name in ("f1", "accuracy") if f"eval_{name}" in run.metrics
    ]
    foretold = f" (foretold {format_bytes(run.predicted.peak_bytes)})" if run.predicted.peak_bytes else ""
    memory, time = f"peak {format_bytes(run.measured.peak_bytes)}{foretold}", format_seconds(run.measured.seconds)
    return f"{run.folder}: {', '.join([*scores, memory, time])}; recipe {' '.join(run.recipe) or 'plain'}"


def _render(**values: Any) -> str:
    return templates().get_template("notebook.html").render(**values)
