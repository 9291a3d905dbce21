"""Reports: pages, tables, pictures and progress; everything that is shown to a person."""

from __future__ import annotations


def as_html(value: object) -> str:
    """An estimate, a plan, a run or a comparison, for a notebook."""
    from tightfit.report import comparison, html, terminal

    renderers = {
        "Bill": html.estimate_as_html,
        "Run": html.run_as_html,
        "Plan": terminal.plan_as_html,
        "Ladder": comparison.comparison_as_html,
    }
    return renderers[type(value).__name__](value)  # type: ignore[operator]


def as_text(value: object) -> str:
    """A plan or a comparison, as the command line prints it."""
    from tightfit.report import comparison, terminal

    renderers = {"Plan": terminal.plan_as_text, "Ladder": comparison.comparison_as_text}
    return renderers[type(value).__name__](value)  # type: ignore[operator]
