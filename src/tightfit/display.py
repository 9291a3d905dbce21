"""Display: how results render in notebooks and when printed, and lines that a training says.

The only module that imports a higher layer (`report`), and only when something is shown.
"""

from __future__ import annotations

import sys


class Display:
    """A result that notebooks show as HTML and print() as a table."""

    def _repr_html_(self) -> str:
        from tightfit.report import as_html

        return as_html(self)

    def __str__(self) -> str:
        from tightfit.report import as_text

        return as_text(self)


def show(line: str) -> None:
    """Print a line in the language of the user, beside progress bars and apart from what a script prints."""
    from tightfit.report import as_line

    print(f"tightfit: {as_line(line)}", file=sys.stderr, flush=True)  # noqa: T201
