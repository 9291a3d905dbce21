"""Page: one HTML file that needs nothing else: no network, no script; phone and desk, light and dark."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment


def page(title: str, body: str, language: str = "en") -> str:
    """The whole file around a body of HTML, which is taken as it is."""
    from markupsafe import Markup

    return templates().get_template("page.html").render(title=title, body=Markup(body), language=language)


@cache
def templates() -> Environment:
    """The report's templates; whatever a value holds, it is text and never a tag."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("tightfit.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
