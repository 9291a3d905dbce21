"""How a value shows itself in a notebook or when it is printed: the one place where values know the renderers."""

from __future__ import annotations


class HTMLDisplay:
    """A value that a notebook shows as HTML."""

    def _repr_html_(self) -> str:
        from tightfit.report import as_html

        return as_html(self)


class Display(HTMLDisplay):
    """The same, and a table when it is printed."""

    def __str__(self) -> str:
        from tightfit.report import as_text

        return as_text(self)
