"""Drawing: figures without a screen, as SVG inside a page, as a file of its own, or as PNG.

Black stands for the page's own text colour: inside a page it becomes `currentColor`, so a picture reads on light
and dark alike. The other colours are those of Paul Tol's "bright" scheme, which colour-blind people tell apart.
"""

from __future__ import annotations

import hashlib
import io
import re
import unicodedata
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from tightfit.comparison.comparison import Comparison, ComparisonRow, kinds_of
from tightfit.report.i18n import Strings
from tightfit.strategies.base import MemoryKind
from tightfit.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tightfit.runs.header import Segment, Texts


KIND_COLOURS: dict[MemoryKind, str] = {
    MemoryKind.WEIGHTS: "#4477aa",
    MemoryKind.GRADIENTS: "#ee6677",
    MemoryKind.OPTIMIZER_STATE: "#228833",
    MemoryKind.ACTIVATIONS: "#ccbb44",
    MemoryKind.INPUTS: "#66ccee",
    MemoryKind.TEMPORARY: "#aa3377",
    MemoryKind.ALLOCATOR: "#bbbbbb",
    MemoryKind.HOST: "#ee8866",
}
OVERHEAD = "#888888"
"""The process itself, or what a card keeps for itself: there without any tensor."""
COLOURS = {"process": OVERHEAD, **{kind.value: colour for kind, colour in KIND_COLOURS.items()}}
"""The same by name."""
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
        element.text, element.tail = ((strings or "").strip() or None for strings in (element.text, element.tail))
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


# Scale: the unit that a picture's bytes are best read in, and room for letters that matplotlib has not.


def unit_for(most: float) -> tuple[int, str]:
    """Bytes in a unit, and its name."""
    return (1 << 30, "GiB") if most >= 1 << 30 else (1 << 20, "MiB")


def roomy(text: str) -> str:
    """The text with spaces before it that only matplotlib sees.

    Its font has no Chinese letters and takes each for narrower than it is; in a page leading spaces are not shown.
    """
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return " " * round(1.4 * wide) + text


# Curves: numbers over the steps of a training, such as loss and F1; a single one is a dot.


Points = Sequence[tuple[float, float]]


def curves(lines: Mapping[str, Points], across: str, resumed: Sequence[float] = ()) -> Figure:
    """Lines in the order of the colours; `resumed` are the steps from which a run was gone on with."""
    figure, axes = new_figure(4.6, 2.4)
    for (name, points), colour in zip(lines.items(), CURVES * len(lines), strict=False):
        few = len(points) <= 12
        axes.plot(*zip(*points, strict=True), color=colour, label=name, marker="o" if few else "", markersize=4)
    for step in resumed:
        axes.axvline(step, color="black", alpha=0.4, linestyle=":", linewidth=1)
    axes.set(xlabel=across)
    axes.set_xlim(left=0)
    axes.grid(axis="y", alpha=0.25, color="black", linewidth=0.5)
    return figure


def series(history: Sequence[Mapping[str, float | None]], key: str) -> list[tuple[float, float]]:
    """A log's entries of one name, by step; what is no number is left out."""
    found = []
    for entry in history:
        step, value = entry.get("step"), entry.get(key)
        if step is not None and value is not None:
            found.append((float(step), float(value)))
    return found


# Lengths: how many texts are how long; the last bar holds those that were cut.


def lengths(texts: Texts, strings: tuple[str, str] = ("tokens", "texts")) -> Figure:
    """One bar for so many tokens; of the last one the part that was cut has a colour of its own."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = new_figure(4.6, 2.2)
    starts = [1 + number * texts.width for number in range(len(texts.rows))]
    axes.bar(starts, texts.rows, texts.width * 0.9, align="edge", color=CURVES[0])
    if texts.truncated_rows:
        axes.bar(starts[-1:], [texts.truncated_rows], texts.width * 0.9, align="edge", color=BUDGET)
    axes.set(xlabel=strings[0], ylabel=strings[1], xlim=(0, texts.limit + texts.width))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    return figure


# Memory by moment: what was foretold as a bar of its kinds, what was measured as a thin dark one below it.


_THICK, _THIN = 0.5, 0.16


def memory(
    predicted: Mapping[str, Mapping[str, int]],
    overhead: int,
    measured: Mapping[str, int],
    budget: int | None = None,
    name: Callable[[str], str] = str,
) -> Figure:
    """`foretold` is bytes by moment and kind without the overhead, `measured` the peak of each moment."""
    phases = list(predicted) or list(measured)
    totals = [overhead + sum(kinds.values()) for kinds in predicted.values()]
    unit, letters = unit_for(max([*totals, *measured.values(), 1]))
    figure, axes = new_figure(4.6, 0.55 + 0.42 * len(phases))
    for place, phase in enumerate(phases):
        if phase in predicted:
            _bar(axes, place, predicted[phase], overhead, unit)
        if phase in measured:
            axes.barh(place + (_THICK + _THIN) / 2, measured[phase] / unit, _THIN, color=MEASURED, gid="measured")
    if budget is not None:
        axes.axvline(budget / unit, color=BUDGET, linestyle="--", linewidth=1)
    axes.set(xlabel=letters, ylim=(len(phases) - 0.4, -0.5))
    axes.set_yticks(range(len(phases)), [roomy(name(phase)) for phase in phases])
    axes.tick_params(axis="y", length=0)
    return figure


def _bar(axes: Axes, place: int, kinds: Mapping[str, int], overhead: int, unit: int) -> None:
    left = 0.0
    for colour, size in (
        (OVERHEAD, overhead),
        *((KIND_COLOURS[MemoryKind(kind)], size) for kind, size in kinds.items()),
    ):
        if size > 0:
            axes.barh(place, size / unit, _THICK, left=left, color=colour)
            left += size / unit


# Peaks: several runs side by side, each measured peak with a mark where it was foretold.


_LONGEST = 24  # letters of a name


def peaks(names: Sequence[str], measured: Sequence[int | None], predicted: Sequence[int | None]) -> Figure:
    """What is not known is left out."""
    unit, letters = unit_for(max([size for size in (*measured, *predicted) if size] or [1]))
    figure, axes = new_figure(4.6, 0.6 + 0.34 * len(names))
    axes.barh(range(len(names)), [(size or 0) / unit for size in measured], 0.55, color=CURVES[0])
    for place, size in enumerate(predicted):
        if size:
            axes.plot([size / unit] * 2, [place - 0.38, place + 0.38], color=MEASURED, linewidth=2)
    axes.set(xlabel=letters, ylim=(len(names) - 0.5, -0.5))
    axes.set_yticks(range(len(names)), [roomy(_short(name)) for name in names])
    axes.tick_params(axis="y", length=0)
    return figure


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


# Scatter: the peak that was foretold against the one that was measured, every run a dot.


def scatter(
    measured: Sequence[int],
    predicted: Sequence[int],
    strings: tuple[str, str, str] = ("measured peak, GiB", "foretold peak, GiB", "foretold = measured"),
) -> Figure:
    """Dots on the line were foretold exactly; the band is five percent to either side."""
    from matplotlib.ticker import LogLocator, NullFormatter

    across, up = ([size / 2**30 for size in sizes] for sizes in (measured, predicted))
    figure, axes = new_figure(4.6, 4.2)
    axes.spines[["top", "right"]].set_visible(True)
    ends = [0.8 * min(*across, *up), 1.2 * max(*across, *up)]
    axes.plot(ends, ends, color="black", alpha=0.4, linewidth=1, label=strings[2])
    axes.fill_between(
        ends, [0.95 * e for e in ends], [1.05 * e for e in ends], color="black", alpha=0.08, label="± 5 %"
    )
    axes.scatter(across, up, s=16, alpha=0.8, color=CURVES[0], linewidth=0)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel=strings[0], ylabel=strings[1])
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
    axes.legend(frameon=False, loc="upper left")
    return figure


# Timeline: one step, what is alive when, by kind; from left to right the operations, not the seconds.


_WIDE_ENOUGH = 0.09  # of the picture, for a moment's name


def timeline(
    kinds: Mapping[str, Sequence[int]],
    stretches: Sequence[Segment],
    overhead: int = 0,
    name: Callable[[str], str] = str,
) -> Figure:
    """`kinds` is live bytes at every point; the overhead lies below all of them."""
    points = len(next(iter(kinds.values())))
    layers = [[overhead] * points, *kinds.values()]
    unit, letters = unit_for(max(sum(sizes) for sizes in zip(*layers, strict=True)))
    figure, axes = new_figure(4.6, 2.7)
    axes.stackplot(
        range(points),
        [[size / unit for size in sizes] for sizes in layers],
        colors=[OVERHEAD, *(KIND_COLOURS[MemoryKind(kind)] for kind in kinds)],
        step="mid",
        linewidth=0,
    )
    axes.set(xlim=(0, points - 1), ylabel=letters, xticks=[])
    axes.set_ylim(bottom=0)
    _moments(axes, [each for each in stretches if each.phase != "between"], points, name)
    return figure


def _moments(axes: Axes, stretches: Sequence[Segment], points: int, name: Callable[[str], str]) -> None:
    for number, each in enumerate(stretches):
        if number:
            axes.axvline(each.start, color="black", alpha=0.35, linewidth=0.8)
        if (each.end - each.start) / points >= _WIDE_ENOUGH:
            middle = (each.start + each.end) / 2 / (points - 1)
            axes.text(middle, 1.02, name(each.phase), transform=axes.transAxes, ha="center", va="bottom", fontsize=9)


# The ladder: what each rung holds at its peak, by kind, beside the time of its steps.


_GIB = 2**30
_BAR = 0.42  # the rest of a rung's height is its name


def comparison_chart(comparison: Comparison, strings: Strings) -> Figure:
    """Bars by kind with the measured peak as a stroke, the budget as a line across, and the time to the right."""
    figure, _ = new_figure(5.2, 0.9 + 0.44 * len(comparison.rows))
    figure.clear()
    memory, time = figure.subplots(1, 2, sharey=True, width_ratios=(2.8, 1))
    for axes in (memory, time):
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(left=False, labelleft=False)
    _draw_memory(memory, comparison, strings)
    time.patch.set_visible(False)  # a long name reaches under it
    _draw_time(time, comparison, strings)
    memory.set_ylim(len(comparison.rows) - 0.5, -0.75)
    figure.legend(*memory.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=7.5)
    return figure


def _draw_memory(axes: Axes, comparison: Comparison, strings: Strings) -> None:
    _stack(axes, comparison, strings)
    for place, row in enumerate(comparison.rows):
        name = axes.text(0, place - _BAR / 2 - 0.06, row.title, fontsize=7.5, va="bottom", ha="left")
        name.set_in_layout(False)  # it may reach under the time, where nothing else is on its line
        if row.peak:
            label = strings.comparison("measured peak") if row is _first_measured(comparison) else None
            axes.plot([row.peak / _GIB] * 2, [place - 0.27, place + 0.27], color=MEASURED, linewidth=2, label=label)
        end = max(row.peak or 0, row.predicted_peak or 0) / _GIB
        said = format_bytes(row.peak) if row.peak else strings.comparison("not run")
        _beside(axes, end, place, said)
    if comparison.budget_bytes:
        about = f"{strings.comparison('budget')} {format_bytes(comparison.budget_bytes)}"
        axes.axvline(comparison.budget_bytes / _GIB, color=BUDGET, linestyle="--", linewidth=1.2, label=about)
    axes.set_xlabel(strings.comparison("memory"), fontsize=7.5)
    axes.set_xlim(0, 1.25 * _largest(comparison) / _GIB)
    axes.tick_params(labelsize=7.5)


def _stack(axes: Axes, comparison: Comparison, strings: Strings) -> None:
    places, left = range(len(comparison.rows)), [0.0] * len(comparison.rows)
    for kind in ("process", *(kind.value for kind in MemoryKind)):
        sizes = [kinds_of(row).get(kind, 0) / _GIB for row in comparison.rows]
        if any(sizes):
            axes.barh(places, sizes, _BAR, left=left, color=COLOURS[kind], label=strings.kind(kind), linewidth=0)
            left = [start + size for start, size in zip(left, sizes, strict=True)]


def _draw_time(axes: Axes, comparison: Comparison, strings: Strings) -> None:
    seconds = [row.seconds_per_step or 0.0 for row in comparison.rows]
    axes.barh(range(len(seconds)), seconds, _BAR, color=PREDICTED, alpha=0.55, linewidth=0)
    for place, value in enumerate(seconds):
        if value:
            _beside(axes, value, place, format_seconds(value))
    axes.set_xlim(0, 1.9 * max([*seconds, 1e-3]))
    axes.set_xlabel(strings.comparison("time"), fontsize=7.5)
    axes.tick_params(labelsize=7.5)


def _beside(axes: Axes, end: float, place: int, said: str) -> None:
    axes.annotate(said, (end, place), (4, 0), textcoords="offset points", fontsize=7.5, va="center", ha="left")


def _first_measured(comparison: Comparison) -> ComparisonRow | None:
    return next((row for row in comparison.rows if row.peak), None)


def _largest(comparison: Comparison) -> int:
    peaks = [size for row in comparison.rows for size in (row.peak, row.predicted_peak) if size]
    return max([*peaks, comparison.budget_bytes or 0, 1])


# Legend: what colours mean, inside a picture that stands alone.


def add_legend(figure: Figure, keys: Sequence[tuple[str, str]], columns: int = 3) -> None:
    """Colours with their names, below the picture."""
    from matplotlib.patches import Patch

    patches = [Patch(color=colour, label=name) for colour, name in keys]
    figure.legend(handles=patches, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
