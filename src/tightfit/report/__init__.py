"""Reports: HTML pages, terminal tables, charts, model cards and progress bars, in English and Chinese."""

from __future__ import annotations


def as_html(value: object) -> str:
    """An estimate, a plan, a run or a comparison as HTML for a notebook."""
    from tightfit.report import comparison, html, terminal

    renderers = {
        "Estimate": html.estimate_as_html,
        "Run": html.run_as_html,
        "Plan": terminal.plan_as_html,
        "Comparison": comparison.comparison_as_html,
    }
    return renderers[type(value).__name__](value)  # type: ignore[operator]


def as_text(value: object) -> str:
    """A plan or a comparison as the command line prints it."""
    from tightfit.report import comparison, terminal

    renderers = {"Plan": terminal.plan_as_text, "Comparison": comparison.comparison_as_text}
    return renderers[type(value).__name__](value)  # type: ignore[operator]
