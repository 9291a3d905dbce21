"""Reports: HTML pages, terminal tables, charts, model cards and progress bars, in English and Chinese."""

from __future__ import annotations

from tightfit.i18n import render


def as_html(value: object) -> str:
    """A result as HTML for a notebook."""
    from tightfit.report import comparison, html, memory_report, terminal

    renderers = {
        "Estimate": html.estimate_as_html,
        "Run": html.run_as_html,
        "Plan": terminal.plan_as_html,
        "Comparison": comparison.comparison_as_html,
        "Evaluation": terminal.evaluation_as_html,
        "MemoryReport": memory_report.memory_report_as_html,
    }
    return renderers[type(value).__name__](value)  # type: ignore[operator]


def as_line(line: str) -> str:
    """A message in the user's language."""
    return render(line)


def as_text(value: object) -> str:
    """A result as the command line prints it."""
    from tightfit.report import comparison, memory_report, terminal

    renderers = {
        "Plan": terminal.plan_as_text,
        "Comparison": comparison.comparison_as_text,
        "Estimate": terminal.estimate_as_text,
        "Run": terminal.run_as_text,
        "Evaluation": terminal.evaluation_as_text,
        "MemoryReport": memory_report.memory_report_as_text,
    }
    return renderers[type(value).__name__](value)  # type: ignore[operator]
