"""Drawing: figures without a screen, as SVG inside a page, as a file of its own, or as PNG.

Black stands for the page's own text colour: inside a page it becomes `currentColor`, so a picture reads on light
and dark alike. The other colours are those of Paul Tol's "bright" scheme, which colour-blind people tell apart.
"""

from __future__ import annotations

import hashlib
import io
import re
import warnings
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from tightfit.strategy import Kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KIND_COLOURS: dict[Kind, str] = {
    Kind.WEIGHTS: "#4477aa",
    Kind.GRADIENTS: "#ee6677",
    Kind.OPTIMIZER_STATE: "#228833",
    Kind.ACTIVATIONS: "#ccbb44",
    Kind.INPUTS: "#66ccee",
    Kind.TEMPORARY: "#aa3377",
    Kind.ALLOCATOR: "#bbbbbb",
    Kind.HOST: "#ee8866",
}
OVERHEAD = "#888888"
"""The process itself, or what a card keeps for itself: there without any tensor."""
MEASURED = "#000000"
PREDICTED = "#4477aa"
BUDGET = "#ee6677"
CURVES = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")
"""For lines that are told apart by their colour alone."""

_INK = "#000000"
_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
_WIDEST = 1.6  # times the size it was drawn at: larger letters than a page's own look clumsy
_DECIMALS = re.compile(r"(\.\d\d)\d+")
_FAMILY = re.compile(r"font-family: [^;]+")


def new_figure(width: float = 5.0, height: float = 3.0) -> tuple[Figure, Axes]:
    """An empty picture of so many inches, with only the axes that are needed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def as_svg(figure: Figure, label: str = "") -> str:
    """The <svg> element for a page: as wide as there is room, in the page's letters and text colour.

    `label` is what it is called for those who cannot see it.
    """
    root = _drawn(figure, transparent=True)
    about = {"role": "img", "aria-label": label} if label else {}
    width = float(root.get("viewBox", "").split()[2])
    inside = ElementTree.Element("svg", {"viewBox": root.get("viewBox", ""), "width": "100%", **about})
    inside.set("style", f"max-width: {width * _WIDEST:.0f}px; fill: currentColor; stroke-linejoin: round")
    inside.extend(list(root))
    for element in inside.iter():
        _at_home_in_a_page(element)
    return _with_own_ids(ElementTree.tostring(inside, encoding="unicode"))


def as_file_svg(figure: Figure) -> str:
    """A file of its own, on white."""
    ElementTree.register_namespace("", _SVG[1:-1])
    ElementTree.register_namespace("xlink", _LINK[1:].partition("}")[0])
    root = _drawn(figure)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def as_png(figure: Figure) -> bytes:
    """Pixels, on white, sharp enough for a slide."""
    return _saved(figure, format="png", dpi=160, facecolor="white", metadata={"Software": None})


def _drawn(figure: Figure, **how: Any) -> ElementTree.Element:
    """The picture as a tree, without what differs from day to day and what nobody refers to."""
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    root = ElementTree.fromstring(_saved(figure, format="svg", metadata=nothing, **how))
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag == f"{_SVG}metadata" or child.find(f"{_SVG}style") is not None:
                parent.remove(child)
    text = ElementTree.tostring(root, encoding="unicode")
    named = set(re.findall(r"[\"(]#([\w-]+)", text))
    for element in root.iter():
        if element.get("id") not in named:
            element.attrib.pop("id", None)
        if "d" in element.attrib:
            element.set("d", _DECIMALS.sub(r"\1", element.get("d", "")))
        element.text, element.tail = ((words or "").strip() or None for words in (element.text, element.tail))
    root.set("stroke-linejoin", "round")
    return root


def _saved(figure: Figure, **how: Any) -> bytes:
    import matplotlib

    out = io.BytesIO()
    letters = matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "tightfit"})
    with letters, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the reader's own fonts have it
        figure.savefig(out, **how)
    return out.getvalue()


def _at_home_in_a_page(element: ElementTree.Element) -> None:
    """No namespaces, the page's letters, the page's ink."""
    element.tag = element.tag.removeprefix(_SVG)
    if _LINK in element.attrib:
        element.set("href", element.attrib.pop(_LINK))
    for name, value in element.items():
        value = _FAMILY.sub("font-family: var(--font, sans-serif)", value)
        element.set(name, " ".join(value.replace(_INK, "currentColor").split()))


def _with_own_ids(svg: str) -> str:
    """Names that no other picture of the page has."""
    own = hashlib.sha256(svg.encode()).hexdigest()[:8]
    return re.sub(r"(id=\"|[\"(]#)([\w-]+)", rf"\g<1>{own}-\2", svg)
