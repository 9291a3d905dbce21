"""A comparison as a table: in a terminal, as Markdown, and as a page with a picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from html import escape
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tightfit.comparison.comparison import KINDS, Comparison, ComparisonRow, kinds_of, parent_row, savings
from tightfit.files import write_whole
from tightfit.report.charts import COLOURS, as_png, as_svg, comparison_chart
from tightfit.report.html import page
from tightfit.report.i18n import Strings
from tightfit.units import format_bytes, format_seconds

_BAR, _WIDTH = 16, 120
_COLUMNS = ("rung", "measured", "predicted", "phase", "a step", "an epoch", "F1", "result", "shrank")


def columns(comparison: Comparison) -> list[str]:
    """What there is to be shown: F1 only where a training ran to its end."""
    scored = any(row.scores("f1") for row in comparison.rows)
    return [name for name in _COLUMNS if scored or name != "F1"]


def cells(comparison: Comparison, row: ComparisonRow, strings: Strings) -> dict[str, str]:
    """A rung's figures as text; where it was not measured the reason stands in place of what it shrank."""
    step, epoch = row.seconds_per_step, row.seconds_per_epoch
    found = {
        "rung": row.title,
        "measured": row.peak and format_bytes(row.peak),
        "predicted": row.predicted_peak and format_bytes(row.predicted_peak),
        "phase": row.phase and strings.phase(row.phase),
        "a step": step and format_seconds(step),
        "an epoch": epoch and format_seconds(epoch),
        "F1": _score(row),
        "result": strings.comparison(row.result),
    }
    return {name: str(cell or "–") for name, cell in found.items()} | {
        "shrank": row.failed or _shrank(comparison, row, strings)
    }


def about(comparison: Comparison, strings: Strings) -> str:
    """What was trained, and for how long."""
    job, device = comparison.job, strings.device(comparison.device)
    what = f"{Path(job.model).name}, {Path(job.data).name}, {job.batch_size} × {job.max_length}, {device}"
    how_long = (
        strings.comparison("to the end")
        if comparison.steps is None
        else strings.comparison("some steps", steps=comparison.steps)
    )
    return f"{what}; {how_long}"


def _score(row: ComparisonRow) -> str:
    scores = row.scores("f1")
    spread = f" ± {(max(scores) - min(scores)) / 2:.4f}" if len(scores) > 1 else ""
    return f"{statistics.mean(scores):.4f}{spread}" if scores else ""


def _shrank(comparison: Comparison, row: ComparisonRow, strings: Strings) -> str:
    """Every kind that changed, as in "activations −9.1 GiB"."""
    changes, before = savings(comparison, row), parent_row(comparison, row)
    if before is None or not changes:
        return ""
    said = [
        f"{strings.kind(kind)} {'−' if lost > 0 else '+'}{format_bytes(abs(lost))}" for kind, lost in changes.items()
    ]
    return f"{', '.join(said)} ({strings.comparison('against', row=before.title)})"


def show_comparison(comparison: Comparison, console: Console) -> None:
    """A line for each rung, what it shrank below it. Recipes come last: they may be longer than a terminal is wide."""
    strings = Strings.of("en")
    console.print(f"\n{about(comparison, strings)}", style="bold", markup=False)
    names = [name for name in columns(comparison) if name not in ("rung", "phase", "shrank")]
    rows = [cells(comparison, row, strings) for row in comparison.rows]
    widths = [max(map(len, (name, *(row[name] for row in rows)))) for name in names]
    console.print(f"{_aligned(names, widths)}  {'':{_BAR}}  rung", style="dim", markup=False)
    for row, found in zip(comparison.rows, rows, strict=True):
        figures = _aligned([found[name] for name in names], widths)
        console.print(Text.assemble(figures, "  ", _bar(comparison, row), f"  {row.title}"))
        if found["shrank"]:
            console.print(f"{'':{len(figures) + _BAR + 4}}{found['shrank']}", style="dim", markup=False)
    console.print(_legend(comparison))


def comparison_as_text(comparison: Comparison) -> str:
    """The same without colours."""
    page = StringIO()
    show_comparison(comparison, Console(file=page, width=_WIDTH, no_color=True, soft_wrap=True))
    return page.getvalue()


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))


def _bar(comparison: Comparison, row: ComparisonRow) -> Text:
    """The foretold peak by kind, as long as the largest rung lets it be."""
    largest = max((r.predicted.peak_bytes for r in comparison.rows if r.predicted), default=1)
    line, done = Text(), 0
    for kind, size in kinds_of(row).items():
        start, end = (round(_BAR * edge / largest) for edge in (done, done + size))
        line.append("█" * (end - start), style=COLOURS[kind])
        done += size
    return line.append(" " * (_BAR - len(line)))


def _legend(comparison: Comparison) -> Text:
    there = [kind for kind in KINDS if any(kinds_of(row)[kind] for row in comparison.rows)]
    return Text("  ").join(Text.assemble(("█", COLOURS[kind]), f" {kind}") for kind in there)


def comparison_as_markdown(comparison: Comparison, language: str = "en") -> str:
    """For a README or an issue."""
    strings, names = Strings.of(language), columns(comparison)
    lines = [[strings.comparison(name) for name in names], ["---"] * len(names)]
    for row in comparison.rows:
        found = cells(comparison, row, strings)
        lines.append([f"`{found[name]}`" if name == "rung" else found[name] for name in names])
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"{about(comparison, strings)}\n\n{table}"


def comparison_as_html(comparison: Comparison, language: str = "en") -> str:
    """The picture and the table, for a notebook or a page."""

    strings, names = Strings.of(language), columns(comparison)
    head = "".join(f"<th>{strings.comparison(name)}</th>" for name in names)
    rows = [cells(comparison, row, strings) for row in comparison.rows]
    body = "".join(f"<tr>{''.join(_cell(name, row[name]) for name in names)}</tr>" for row in rows)
    picture = as_svg(comparison_chart(comparison, strings), strings.comparison("title"))
    table = f"<div class='scroll'><table><tr>{head}</tr>{body}</table></div>"
    return f"<p>{escape(about(comparison, strings))}</p><figure>{picture}</figure>{table}"


def _cell(name: str, text: str) -> str:
    if name == "rung":
        return f"<td style='min-width: 9rem'><code>{escape(text)}</code></td>"
    if name == "shrank":
        return f"<td style='min-width: 13rem'>{escape(text)}</td>"
    return f"<td class='number'>{escape(text)}</td>"


def write_comparison(comparison: Comparison, folder: Path, language: str) -> None:
    """ladder.md, ladder.html and ladder.png beside ladder.json."""
    title = Strings.of(language).comparison("title")
    body = f"<h1>{title}</h1>{comparison_as_html(comparison, language)}"
    write_whole(folder / "comparison.md", comparison_as_markdown(comparison, language))
    write_whole(folder / "comparison.html", page(title, body, language))
    (folder / "comparison.png").write_bytes(
        as_png(comparison_chart(comparison, Strings.of("en")))
    )  # fonts for Chinese may be missing
