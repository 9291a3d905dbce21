"""Charts: the drawn numbers are those of the input, and the SVG is readable on light and dark pages."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pytest

from tightfit.report.charts import (
    KIND_COLOURS,
    OVERHEAD,
    as_file_svg,
    as_png,
    as_svg,
    curves,
    lengths,
    memory,
    new_figure,
    peaks,
    scatter,
    series,
    timeline,
)
from tightfit.runs.header import LengthStats, Segment
from tightfit.strategies.base import MemoryKind

GIB = 1 << 30
PHASES = {
    "forward": {"weights": GIB, "activations": 2 * GIB, "gradients": 0},
    "step": {"weights": GIB, "activations": 0, "gradients": GIB},
}


def colour_of(patch: object) -> str:
    from matplotlib.colors import to_hex

    return to_hex(patch.get_facecolor())  # type: ignore[attr-defined]


def test_memory_chart_stacks_kinds_and_shows_measured_peaks() -> None:
    axes = memory(PHASES, GIB // 2, {"forward": 3 * GIB, "save": GIB}, budget=4 * GIB).axes[0]
    bars = [(colour_of(bar), bar.get_x(), bar.get_width()) for bar in axes.patches]
    assert bars == [
        (OVERHEAD, 0, 0.5),
        (KIND_COLOURS[MemoryKind.WEIGHTS], 0.5, 1),
        (KIND_COLOURS[MemoryKind.ACTIVATIONS], 1.5, 2),
        ("#000000", 0, 3),
        (OVERHEAD, 0, 0.5),
        (KIND_COLOURS[MemoryKind.WEIGHTS], 0.5, 1),
        (KIND_COLOURS[MemoryKind.GRADIENTS], 1.5, 1),
    ]
    assert axes.lines[0].get_xdata() == [4, 4]
    assert axes.get_xlabel() == "GiB"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["forward", "step"]


def test_timeline_stacks_kinds_on_the_overhead() -> None:
    kinds = {"weights": [GIB, GIB, GIB, GIB], "activations": [0, GIB, 2 * GIB, 0]}
    segments = [
        Segment(phase="forward", start=0, end=1, micro_batch=0),
        Segment(phase="step", start=2, end=3, micro_batch=-1),
    ]
    axes = timeline(kinds, segments, GIB).axes[0]
    tops = [max(vertex[1] for vertex in area.get_paths()[0].vertices) for area in axes.collections]
    assert tops == [1, 2, 4]
    assert [line.get_xdata()[0] for line in axes.lines] == [2]
    assert [text.get_text() for text in axes.texts] == ["forward", "step"]


def test_histogram_marks_truncated_texts() -> None:
    bars = lengths(_stats(3, truncated=2)).axes[0].patches
    assert [(bar.get_x(), bar.get_height()) for bar in bars] == [(1, 3), (5, 5), (5, 2)]


def test_curves_skip_missing_values() -> None:
    history = [{"step": 1, "loss": 0.5}, {"step": 2, "loss": None}, {"step": 3, "loss": 0.25, "eval_f1": 0.9}]
    assert series(history, "loss") == [(1, 0.5), (3, 0.25)]
    axes = curves({"loss": series(history, "loss"), "f1": series(history, "eval_f1")}, "steps", [2]).axes[0]
    assert [list(line.get_ydata()) for line in axes.lines[:2]] == [[0.5, 0.25], [0.9]]
    assert list(axes.lines[2].get_xdata()) == [2, 2]


def test_scatter_and_peaks_show_every_run() -> None:
    dots = scatter([GIB, 2 * GIB], [GIB, 3 * GIB]).axes[0].collections[-1].get_offsets().tolist()
    assert dots == [[1, 1], [2, 3]]
    axes = peaks(["a", "b"], [GIB, None], [2 * GIB, None]).axes[0]
    assert [bar.get_width() for bar in axes.patches] == [1, 0]
    assert [list(line.get_xdata()) for line in axes.lines] == [[2, 2]]


def test_inline_svg_uses_the_font_and_text_colour_of_the_page() -> None:
    svg, again = (as_svg(_line(), 'a "chart"') for _ in range(2))
    assert svg == again
    root = ElementTree.fromstring(svg)
    assert root.get("width") == "100%"
    assert root.get("aria-label") == 'a "chart"'
    assert "#000000" not in svg
    assert "#ffffff" not in svg
    assert "stroke: currentColor" in svg
    assert "DejaVu" not in svg
    assert "反向 &lt;&amp;&gt;" in svg
    assert "http" not in svg
    assert "<!--" not in svg


def _line() -> Any:
    figure, axes = new_figure()
    axes.plot([1, 2], [1, 2], color="black")
    axes.set_xlabel("反向 <&>")
    return figure


def test_two_charts_in_a_page_share_no_id() -> None:
    ids = [set(re.findall(r'id="([^"]+)"', as_svg(lengths(stats)))) for stats in (_stats(3), _stats(4))]
    assert all(ids)
    assert not ids[0] & ids[1]


def _stats(rows: int, truncated: int = 0) -> LengthStats:
    factors = {"padding_factor": 1.2, "padding_factor_unsorted": 1.5}
    return LengthStats(limit=8, width=4, rows=[rows, 5], truncated_rows=truncated, **factors)


def test_svg_and_png_files_are_reproducible_and_on_white() -> None:
    svg = as_file_svg(lengths(_stats(3)))
    assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    assert "fill: #ffffff" in svg
    assert svg == as_file_svg(lengths(_stats(3)))
    assert as_png(lengths(_stats(3))).startswith(b"\x89PNG")


def test_every_kind_has_a_colour_of_its_own() -> None:
    assert set(KIND_COLOURS) == set(MemoryKind)
    assert len({*KIND_COLOURS.values(), OVERHEAD}) == len(MemoryKind) + 1


def test_drawing_does_not_change_matplotlib_settings() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    as_svg(lengths(_stats(3)))
    assert dict(matplotlib.rcParams) == before


def test_command_line_imports_neither_torch_nor_matplotlib_nor_jinja2() -> None:
    import subprocess
    import sys

    script = "import sys, tightfit.cli; print([m for m in ('torch', 'matplotlib', 'jinja2') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("width", [1, 3])
def test_length_stats_count_every_text(width: int) -> None:
    """The bins add up to the number of texts at any bin width, and single rows need no padding."""
    from dataclasses import replace
    from types import SimpleNamespace

    from tightfit.data.batching import Batching
    from tightfit.data.tokens import Tokens
    from tightfit.job import Job
    from tightfit.simulation.worst_case import Lengths
    from tightfit.strategies.parts import Tokens as RowsOfTokens
    from tightfit.training.setup import length_stats

    lengths_of = [1 + 7 * row % 20 for row in range(40)]
    job = Job(model="m", data="d", batch_size=8, max_length=20)
    batching = Batching(batch_size=8, max_length=20 * width)
    parts: Any = SimpleNamespace(batching=batching, step_batching=batching, source=RowsOfTokens())
    found = length_stats(Tokens(None, lengths_of, 0, 0), Lengths.of(job, lengths_of, [3]), parts)
    assert sum(found.rows) == 40
    assert found.tokens == sum(lengths_of)
    assert found.padding_factor == found.padding_factor_unsorted > 1
    single_rows = length_stats(
        Tokens(None, lengths_of, 0, 0),
        Lengths.of(job, lengths_of, [3]),
        SimpleNamespace(**{**vars(parts), "step_batching": replace(batching, micro_batch_size=1)}),
    )
    assert single_rows.padding_factor == 1
