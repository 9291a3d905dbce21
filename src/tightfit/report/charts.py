"""Draws charts with matplotlib: as inline SVG for a page, as an SVG file, or as PNG.

Black stands for the page's text colour: in a page it becomes `currentColor`, so that a chart is readable on light and
dark backgrounds. The other colours are those of Paul Tol's "bright" scheme, which is safe for colour-blind readers.
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
from tightfit.i18n import Render, render
from tightfit.messages import msg
from tightfit.report.names import kind_name, memory_name
from tightfit.strategies.base import MemoryKind
from tightfit.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tightfit.runs.header import LengthStats, Segment


# Colours.


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
"""Memory that is used without any tensor: the process, or the CUDA context."""
COLOURS = {"process": OVERHEAD, **{kind.value: colour for kind, colour in KIND_COLOURS.items()}}
"""The same by name."""
MEASURED = "#000000"
BUDGET = "#ee6677"
LINE_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")
"""For the lines of one chart, in order."""


# Charts of a run.


_THICK, _THIN = 0.5, 0.16


def memory(
    predicted: Mapping[str, Mapping[str, int]],
    overhead: int,
    measured: Mapping[str, int],
    budget: int | None = None,
    name: Callable[[str], str] = str,
    not_measured: int = 0,
) -> Figure:
    """Memory by phase: the prediction as a bar of its kinds, the measured peak as a thin dark bar below it.

    `predicted` is bytes by phase and kind without the overhead, `measured` the peak of each phase. The measured bar
    leaves out what is `not_measured` of the overhead, as the context of a GPU.
    """
    phases = list(predicted) or list(measured)
    totals = [overhead + sum(kinds.values()) for kinds in predicted.values()]
    unit, unit_name = unit_for(max([*totals, *measured.values(), 1]))
    figure, axes = new_figure(4.6, 0.55 + 0.42 * len(phases))
    for place, phase in enumerate(phases):
        if phase in predicted:
            _stacked_bar(axes, place, predicted[phase], overhead, unit)
        if phase in measured:
            middle, width, left = place + (_THICK + _THIN) / 2, measured[phase] / unit, not_measured / unit
            axes.barh(middle, width, _THIN, left=left, color=MEASURED, gid="measured")
    if budget is not None:
        axes.axvline(budget / unit, color=BUDGET, linestyle="--", linewidth=1)
    axes.set(xlabel=unit_name, ylim=(len(phases) - 0.4, -0.5))
    axes.set_yticks(range(len(phases)), [pad_cjk(name(phase)) for phase in phases])
    axes.tick_params(axis="y", length=0)
    return figure


def _stacked_bar(axes: Axes, place: int, kinds: Mapping[str, int], overhead: int, unit: int) -> None:
    left = 0.0
    for colour, size in (
        (OVERHEAD, overhead),
        *((KIND_COLOURS[MemoryKind(kind)], size) for kind, size in kinds.items()),
    ):
        if size > 0:
            axes.barh(place, size / unit, _THICK, left=left, color=colour)
            left += size / unit


_MIN_LABEL_WIDTH = 0.09  # of the chart: a narrower phase has no label


def timeline(
    kinds: Mapping[str, Sequence[int]],
    segments: Sequence[Segment],
    overhead: int = 0,
    name: Callable[[str], str] = str,
) -> Figure:
    """Live bytes of each kind during one step, stacked on the overhead; the x-axis counts operations, not seconds."""
    points = len(next(iter(kinds.values())))
    layers = [[overhead] * points, *kinds.values()]
    unit, unit_name = unit_for(max(sum(sizes) for sizes in zip(*layers, strict=True)))
    figure, axes = new_figure(4.6, 2.7)
    axes.stackplot(
        range(points),
        [[size / unit for size in sizes] for sizes in layers],
        colors=[OVERHEAD, *(KIND_COLOURS[MemoryKind(kind)] for kind in kinds)],
        step="mid",
        linewidth=0,
    )
    axes.set(xlim=(0, points - 1), ylabel=unit_name, xticks=[])
    axes.set_ylim(bottom=0)
    _label_phases(axes, [segment for segment in segments if segment.phase != "between"], points, name)
    return figure


def _label_phases(axes: Axes, segments: Sequence[Segment], points: int, name: Callable[[str], str]) -> None:
    for number, segment in enumerate(segments):
        if number:
            axes.axvline(segment.start, color="black", alpha=0.35, linewidth=0.8)
        if (segment.end - segment.start) / points >= _MIN_LABEL_WIDTH:
            middle = (segment.start + segment.end) / 2 / (points - 1)
            label = name(segment.phase)
            axes.text(middle, 1.02, label, transform=axes.transAxes, ha="center", va="bottom", fontsize=9)


def lengths(stats: LengthStats, labels: tuple[str, str] = ("tokens", "texts")) -> Figure:
    """Histogram of the text lengths; the truncated texts are coloured within the last bar."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = new_figure(4.6, 2.2)
    starts = [1 + number * stats.width for number in range(len(stats.rows))]
    axes.bar(starts, stats.rows, stats.width * 0.9, align="edge", color=LINE_COLOURS[0])
    if stats.truncated_rows:
        axes.bar(starts[-1:], [stats.truncated_rows], stats.width * 0.9, align="edge", color=BUDGET)
    axes.set(xlabel=labels[0], ylabel=labels[1], xlim=(0, stats.limit + stats.width))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    return figure


Points = Sequence[tuple[float, float]]


def curves(lines: Mapping[str, Points], xlabel: str, resumed: Sequence[float] = ()) -> Figure:
    """Values over the steps of a run, such as the loss or a metric; dotted lines mark the steps it was resumed from."""
    figure, axes = new_figure(4.6, 2.4)
    for (name, points), colour in zip(lines.items(), LINE_COLOURS * len(lines), strict=False):
        marker = "o" if len(points) <= 12 else ""
        axes.plot(*zip(*points, strict=True), color=colour, label=name, marker=marker, markersize=4)
    for step in resumed:
        axes.axvline(step, color="black", alpha=0.4, linestyle=":", linewidth=1)
    axes.set(xlabel=xlabel)
    axes.set_xlim(left=0)
    axes.grid(axis="y", alpha=0.25, color="black", linewidth=0.5)
    return figure


def series(history: Sequence[Mapping[str, float | None]], key: str) -> list[tuple[float, float]]:
    """Step and value of the log entries that have a number under this key."""
    found = []
    for entry in history:
        step, value = entry.get("step"), entry.get(key)
        if step is not None and value is not None:
            found.append((float(step), float(value)))
    return found


# Charts of several runs.


_GIB = 2**30
_MAX_NAME = 24  # characters


def peaks(names: Sequence[str], measured: Sequence[int | None], predicted: Sequence[int | None]) -> Figure:
    """The measured peak of each run as a bar, the predicted one as a mark; None is left out."""
    unit, unit_name = unit_for(max([size for size in (*measured, *predicted) if size] or [1]))
    figure, axes = new_figure(4.6, 0.6 + 0.34 * len(names))
    axes.barh(range(len(names)), [(size or 0) / unit for size in measured], 0.55, color=LINE_COLOURS[0])
    for place, size in enumerate(predicted):
        if size:
            axes.plot([size / unit] * 2, [place - 0.38, place + 0.38], color=MEASURED, linewidth=2)
    axes.set(xlabel=unit_name, ylim=(len(names) - 0.5, -0.5))
    axes.set_yticks(range(len(names)), [pad_cjk(_shorten(name)) for name in names])
    axes.tick_params(axis="y", length=0)
    return figure


def _shorten(name: str) -> str:
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 1]}…"


def scatter(
    measured: Sequence[int],
    predicted: Sequence[int],
    labels: tuple[str, str, str] = ("measured peak, GiB", "predicted peak, GiB", "predicted = measured"),
) -> Figure:
    """Predicted against measured peak, one dot per run, with the diagonal and a band of five percent around it."""
    from matplotlib.ticker import LogLocator, NullFormatter

    x, y = ([size / _GIB for size in sizes] for sizes in (measured, predicted))
    figure, axes = new_figure(4.6, 4.2)
    axes.spines[["top", "right"]].set_visible(True)
    ends = [0.8 * min(*x, *y), 1.2 * max(*x, *y)]
    axes.plot(ends, ends, color="black", alpha=0.4, linewidth=1, label=labels[2])
    axes.fill_between(
        ends, [0.95 * e for e in ends], [1.05 * e for e in ends], color="black", alpha=0.08, label="± 5 %"
    )
    axes.scatter(x, y, s=16, alpha=0.8, color=LINE_COLOURS[0], linewidth=0)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel=labels[0], ylabel=labels[1])
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
    axes.legend(frameon=False, loc="upper left")
    return figure


# Chart of a comparison.


_BAR = 0.42  # of a row's height; the recipe is written in the rest
_MAX_TITLE = 80  # characters of a recipe; a longer one is written smaller
_LABEL_WIDTH = 0.2  # of the largest peak: what "13.3 GiB" takes


def comparison_chart(comparison: Comparison, text: Render = render) -> Figure:
    """The predicted peak of each row by kind, the measured peak and the budget as lines, and the time per step."""
    figure, _ = new_figure(5.2, 1.05 + 0.44 * len(comparison.rows))
    figure.clear()
    memory, time = figure.subplots(1, 2, sharey=True, width_ratios=(2.8, 1))
    for axes in (memory, time):
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(left=False, labelleft=False)
    _draw_memory(memory, comparison, text)
    time.patch.set_visible(False)  # a long recipe reaches under it
    _draw_time(time, comparison, text)
    memory.set_ylim(len(comparison.rows) - 0.5, -0.75)
    figure.legend(*memory.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=7.5)
    return figure


def _draw_memory(axes: Axes, comparison: Comparison, text: Render) -> None:
    _draw_kinds(axes, comparison, text)
    for place, row in enumerate(comparison.rows):
        title = text(row.title)
        size = min(7.5, 7.5 * _MAX_TITLE / len(title))
        name = axes.text(0, place - _BAR / 2 - 0.06, title, fontsize=size, va="bottom", ha="left")
        name.set_in_layout(False)  # it may reach under the times, where its line is free
        if row.peak:
            label = text(msg("measured peak")) if row is _first_measured(comparison) else None
            axes.plot([row.peak / _GIB] * 2, [place - 0.27, place + 0.27], color=MEASURED, linewidth=2, label=label)
        label = format_bytes(row.peak) if row.peak else text(msg("not run"))
        _write_beside(axes, _label_start(comparison, row) / _GIB, place, label)
    _draw_budget(axes, comparison, text)
    axes.set_xlabel(text(msg("peak {memory}, GiB", memory=memory_name(comparison.device))), fontsize=7.5)
    axes.set_xlim(0, 1.25 * _largest(comparison) / _GIB)
    axes.tick_params(labelsize=7.5)


def _label_start(comparison: Comparison, row: ComparisonRow) -> int:
    """The end of the bar; the budget, if its line would cross the label."""
    end, budget = max(row.peak or 0, row.predicted_peak or 0), comparison.budget_bytes or 0
    return budget if end < budget < end + _LABEL_WIDTH * _largest(comparison) else end


def _draw_budget(axes: Axes, comparison: Comparison, text: Render) -> None:
    """A line across each bar, but not across the recipes between them."""
    if comparison.budget_bytes:
        places = range(len(comparison.rows))
        lower, upper = ([place + end for place in places] for end in (-0.25, 0.3))
        label = text(msg("budget {size}", size=format_bytes(comparison.budget_bytes)))
        axes.vlines(
            [comparison.budget_bytes / _GIB] * len(places), lower, upper, BUDGET, "--", label=label, linewidth=1.2
        )


def _draw_kinds(axes: Axes, comparison: Comparison, text: Render) -> None:
    places, left = range(len(comparison.rows)), [0.0] * len(comparison.rows)
    for kind in ("process", *(kind.value for kind in MemoryKind)):
        sizes = [kinds_of(row).get(kind, 0) / _GIB for row in comparison.rows]
        if any(sizes):
            axes.barh(places, sizes, _BAR, left=left, color=COLOURS[kind], label=text(kind_name(kind)), linewidth=0)
            left = [start + size for start, size in zip(left, sizes, strict=True)]


def _draw_time(axes: Axes, comparison: Comparison, text: Render) -> None:
    seconds = [row.seconds_per_step or 0.0 for row in comparison.rows]
    axes.barh(range(len(seconds)), seconds, _BAR, color=LINE_COLOURS[0], alpha=0.55, linewidth=0)
    for place, value in enumerate(seconds):
        if value:
            _write_beside(axes, value, place, text(format_seconds(value)))
    axes.set_xlim(0, 1.9 * max([*seconds, 1e-3]))
    axes.set_xlabel(text(msg("seconds per step")), fontsize=7.5)
    axes.tick_params(labelsize=7.5)


def _write_beside(axes: Axes, end: float, place: int, text: str) -> None:
    axes.annotate(text, (end, place), (4, 0), textcoords="offset points", fontsize=7.5, va="center", ha="left")


def _first_measured(comparison: Comparison) -> ComparisonRow | None:
    return next((row for row in comparison.rows if row.peak), None)


def _largest(comparison: Comparison) -> int:
    peaks = [size for row in comparison.rows for size in (row.peak, row.predicted_peak) if size]
    return max([*peaks, comparison.budget_bytes or 0, 1])


# Axes, units and legends.


def new_figure(width: float = 5.0, height: float = 3.0) -> tuple[Figure, Axes]:
    """An empty chart of this size in inches, without the top and right axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def unit_for(largest: float) -> tuple[int, str]:
    """Bytes per unit and the name of the unit, for values up to `largest`."""
    return (1 << 30, "GiB") if largest >= 1 << 30 else (1 << 20, "MiB")


def pad_cjk(text: str) -> str:
    """The text with leading spaces that reserve the width of its Chinese characters.

    matplotlib's font has no Chinese glyphs and takes each for narrower than it is; a page does not show the spaces.
    """
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return " " * round(1.4 * wide) + text


# Output: inline SVG, SVG file, PNG.


_TEXT_COLOUR = "#000000"
_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
_MAX_SCALE = 1.6  # of the drawn size: beyond it the text is larger than that of the page
_DECIMALS = re.compile(r"(\.\d\d)\d+")
_FONT_FAMILY = re.compile(r"font-family: [^;]+")


def as_svg(figure: Figure, label: str = "") -> str:
    """The <svg> element for a page, as wide as its container, in the page's font and text colour.

    `label` is the text for screen readers.
    """
    root = _svg_tree(figure, transparent=True)
    aria = {"role": "img", "aria-label": label} if label else {}
    width = float(root.get("viewBox", "").split()[2])
    svg = ElementTree.Element("svg", {"viewBox": root.get("viewBox", ""), "width": "100%", **aria})
    svg.set("style", f"max-width: {width * _MAX_SCALE:.0f}px; fill: currentColor; stroke-linejoin: round")
    svg.extend(list(root))
    for element in svg.iter():
        _inline(element)
    return _with_unique_ids(ElementTree.tostring(svg, encoding="unicode"))


def as_file_svg(figure: Figure) -> str:
    """The content of an SVG file, on white."""
    ElementTree.register_namespace("", _SVG[1:-1])
    ElementTree.register_namespace("xlink", _LINK[1:].partition("}")[0])
    root = _svg_tree(figure)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def chinese_font() -> str | None:
    """A font of this system with Chinese characters; matplotlib brings none."""
    from matplotlib.font_manager import fontManager

    installed = set(fontManager.get_font_names())
    return next((font for font in _CHINESE_FONTS if font in installed), None)


_CHINESE_FONTS = (
    *("Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "Source Han Sans CN", "Noto Sans CJK JP"),
    *("Microsoft YaHei", "PingFang SC", "Hiragino Sans GB", "Heiti SC", "STHeiti", "SimHei", "SimSun", "DengXian"),
    *("WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "Droid Sans Fallback", "AR PL UMing CN", "Arial Unicode MS"),
)


def as_png(figure: Figure) -> bytes:
    """The content of a PNG file, on white, with the resolution of a slide."""
    if font := chinese_font():
        from matplotlib.text import Text

        for each in figure.findobj(Text):
            each.set_fontfamily(["DejaVu Sans", font])
    return _save(figure, format="png", dpi=160, facecolor="white", metadata={"Software": None})


def _svg_tree(figure: Figure, **options: Any) -> ElementTree.Element:
    """The chart as an XML tree without dates and unused ids, so that equal charts are equal text."""
    no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    root = ElementTree.fromstring(_save(figure, format="svg", metadata=no_metadata, **options))
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag == f"{_SVG}metadata" or child.find(f"{_SVG}style") is not None:
                parent.remove(child)
    text = ElementTree.tostring(root, encoding="unicode")
    used_ids = set(re.findall(r"[\"(]#([\w-]+)", text))
    for element in root.iter():
        if element.get("id") not in used_ids:
            element.attrib.pop("id", None)
        if "d" in element.attrib:
            element.set("d", _DECIMALS.sub(r"\1", element.get("d", "")))
        element.text, element.tail = ((text or "").strip() or None for text in (element.text, element.tail))
    root.set("stroke-linejoin", "round")
    return root


def _save(figure: Figure, **options: Any) -> bytes:
    import matplotlib

    out = io.BytesIO()
    text_as_text = matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "tightfit"})
    with text_as_text, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the reader's fonts have it
        figure.savefig(out, **options)
    return out.getvalue()


def _inline(element: ElementTree.Element) -> None:
    """Remove namespaces, and use the font and text colour of the page."""
    element.tag = element.tag.removeprefix(_SVG)
    if _LINK in element.attrib:
        element.set("href", element.attrib.pop(_LINK))
    for name, value in element.items():
        value = _FONT_FAMILY.sub("font-family: var(--font, sans-serif)", value)
        element.set(name, " ".join(value.replace(_TEXT_COLOUR, "currentColor").split()))


def _with_unique_ids(svg: str) -> str:
    """Prefix all ids, so that two charts in one page share none."""
    prefix = hashlib.sha256(svg.encode()).hexdigest()[:8]
    return re.sub(r"(id=\"|[\"(]#)([\w-]+)", rf"\g<1>{prefix}-\2", svg)
