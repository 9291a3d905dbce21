"""Display: how results render in notebooks and when printed.

The only module that imports a higher layer (`report`), and only when something is shown.
"""

from __future__ import annotations


class Display:
    """A result that notebooks show as HTML and print() as a table."""

    def _repr_html_(self) -> str:
        from tightfit.report import as_html

        return as_html(self)

    def __str__(self) -> str:
        from tightfit.report import as_text

        return as_text(self)
