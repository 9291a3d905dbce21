"""The memory report of a trainer: measured beside predicted memory by phase, for the terminal and for notebooks."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from tightfit.i18n import render
from tightfit.messages import msg
from tightfit.report.names import phase_name
from tightfit.report.terminal import aligned
from tightfit.units import format_bytes

if TYPE_CHECKING:
    from tightfit.training.memory_report import MemoryReport


def memory_report_as_text(report: MemoryReport) -> str:
    """A line on the peak, a table of the phases, and what happened."""
    lines = [_peak(report), *aligned([tuple(map(render, row)) for row in _rows(report)])]
    return "\n".join([*lines, *map(render, report.events)])


def memory_report_as_html(report: MemoryReport) -> str:
    """The same for a notebook."""
    rows = "".join("<tr>" + "".join(f"<td>{_escaped(cell)}</td>" for cell in row) + "</tr>" for row in _rows(report))
    events = "".join(f"<li>{_escaped(event)}</li>" for event in report.events)
    return f"<p><b>{escape(_peak(report))}</b></p><table>{rows}</table><ul>{events}</ul>"


def _escaped(text: str) -> str:
    return escape(render(text))


def _peak(report: MemoryReport) -> str:
    peak = format_bytes(report.peak)
    if report.estimate is None:
        return render(msg("peak {peak} on {device}", peak=peak, device=report.device))
    predicted = format_bytes(report.estimate.peak)
    return render(
        msg("peak {peak} on {device}, predicted {predicted}", peak=peak, device=report.device, predicted=predicted)
    )


def _rows(report: MemoryReport) -> Iterator[tuple[str, str, str]]:
    yield msg("phase"), msg("measured"), msg("predicted")
    predicted = report.predicted
    for phase, size in report.measured.items():
        before = format_bytes(predicted[phase]) if phase in predicted else "–"
        yield phase_name(phase), format_bytes(size), before
