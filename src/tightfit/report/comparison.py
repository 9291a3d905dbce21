"""A comparison as a table: in a terminal, as Markdown, and as a page with a chart."""

from __future__ import annotations

import statistics
from html import escape
from io import StringIO
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from tightfit.comparison.comparison import KINDS, Comparison, ComparisonRow, kinds_of, parent_row, savings
from tightfit.files import atomic_write
from tightfit.i18n import ENGLISH, Render, render, renderer
from tightfit.messages import Message, msg, name
from tightfit.report.charts import COLOURS, as_png, as_svg, comparison_chart
from tightfit.report.html import page
from tightfit.report.names import kind_name, phase_name
from tightfit.report.terminal import aligned
from tightfit.tasks import find_task
from tightfit.tasks.base import Metric
from tightfit.units import format_bytes, format_seconds

_BAR, _WIDTH = 16, 120
_HEADINGS = {
    "recipe": msg("recipe"),
    "measured": msg("measured peak"),
    "predicted": msg("predicted peak"),
    "phase": msg("phase", context="of the peak"),
    "time_per_step": msg("time/step"),
    "time_per_epoch": msg("time/epoch"),
    "result": msg("result"),
    "change": msg("change"),
}
_COLUMNS = ("recipe", "measured", "predicted", "phase", "time_per_step", "time_per_epoch", "score", "result", "change")
TITLE = msg("Comparison of recipes")


def write_comparison(comparison: Comparison, folder: Path, language: str) -> None:
    """Write comparison.md, comparison.html and comparison.png beside comparison.json."""
    body = f"<h1>{render(TITLE, language)}</h1>{comparison_as_html(comparison, language)}"
    atomic_write(folder / "comparison.md", comparison_as_markdown(comparison, language))
    atomic_write(folder / "comparison.html", page(TITLE, body, language))
    chart = comparison_chart(comparison, renderer(ENGLISH))  # fonts for Chinese may be missing
    (folder / "comparison.png").write_bytes(as_png(chart))


# The table, in any format.


def columns(comparison: Comparison) -> list[str]:
    """The columns of the table: the score only if a run trained for all epochs."""
    scored = any(row.scores(_best(comparison).name) for row in comparison.rows)
    return [column for column in _COLUMNS if scored or column != "score"]


def heading(comparison: Comparison, column: str) -> Message:
    """The heading of a column; that of the score is the name of the task's best metric."""
    return _best(comparison).title if column == "score" else _HEADINGS[column]


def _best(comparison: Comparison) -> Metric:
    return find_task(comparison.job.task).best


def cells(comparison: Comparison, row: ComparisonRow, text: Render) -> dict[str, str]:
    """The values of a row as text; if it was not measured, the reason is in the column `change`."""
    per_step, per_epoch = row.seconds_per_step, row.seconds_per_epoch
    values = {
        "recipe": row.title,
        "measured": row.peak and format_bytes(row.peak),
        "predicted": row.predicted_peak and format_bytes(row.predicted_peak),
        "phase": row.phase and phase_name(row.phase),
        "time_per_step": per_step and format_seconds(per_step),
        "time_per_epoch": per_epoch and format_seconds(per_epoch),
        "score": _score(row.scores(_best(comparison).name)),
        "result": name(row.result),
    }
    change = row.failed or _change(comparison, row)
    shown = {column: text(value) if isinstance(value, str) and value else "–" for column, value in values.items()}
    return shown | {"change": text(change)}


def _score(scores: list[float]) -> str:
    """The mean over the seeds, and how much they differ."""
    spread = f" ± {(max(scores) - min(scores)) / 2:.4f}" if len(scores) > 1 else ""
    return f"{statistics.mean(scores):.4f}{spread}" if scores else ""


def _change(comparison: Comparison, row: ComparisonRow) -> Message | str:
    """Every kind of memory that changed, as in "activations −9.1 GiB (vs baseline)"."""
    changes, parent = savings(comparison, row), parent_row(comparison, row)
    if parent is None or not changes:
        return ""
    sizes = [
        msg("{kind} {size}", kind=kind_name(kind), size=f"{'−' if saved > 0 else '+'}{format_bytes(abs(saved))}")
        for kind, saved in changes.items()
    ]
    return msg("{changes} (vs {row})", changes=sizes, row=parent.title)


def about(comparison: Comparison) -> Message:
    """The model, the data, the batch, the device and the length of each run."""
    job, steps = comparison.job, comparison.steps
    return msg(
        "{model}, {data}, {rows} × {tokens} tokens, {device}; {how_long}",
        model=Path(job.model).name,
        data=Path(job.data).name,
        rows=job.batch_size,
        tokens=job.max_length,
        device=name(comparison.device),
        how_long=msg("trained for all epochs") if steps is None else msg("{steps} steps each", steps=steps),
    )


# In a terminal.


def show_comparison(comparison: Comparison, console: Console) -> None:
    """A line for each row with the change below it. Recipes are last: they may be longer than a terminal is wide."""
    console.print(f"\n{render(about(comparison))}", style="bold", markup=False)
    names = [column for column in columns(comparison) if column not in ("recipe", "phase", "change")]
    rows = [cells(comparison, row, render) for row in comparison.rows]
    headings = [render(heading(comparison, column)) for column in names]
    first, *lines = aligned([headings, *([row[column] for column in names] for row in rows)])
    console.print(f"{first}  {'':{_BAR}}  {render(_HEADINGS['recipe'])}", style="dim", markup=False)
    for row, line, values in zip(comparison.rows, lines, rows, strict=True):
        console.print(Text.assemble(line, "  ", _bar(comparison, row), f"  {values['recipe']}"))
        if values["change"]:
            console.print(f"{'':{cell_len(line) + _BAR + 4}}{values['change']}", style="dim", markup=False)
    console.print(_legend(comparison))


def comparison_as_text(comparison: Comparison) -> str:
    """The table without colours."""
    page = StringIO()
    show_comparison(comparison, Console(file=page, width=_WIDTH, no_color=True, soft_wrap=True))
    return page.getvalue()


def _bar(comparison: Comparison, row: ComparisonRow) -> Text:
    """The predicted peak by kind, relative to the largest row."""
    largest = max((r.predicted.peak_bytes for r in comparison.rows if r.predicted), default=1)
    line, done = Text(), 0
    for kind, size in kinds_of(row).items():
        start, end = (round(_BAR * edge / largest) for edge in (done, done + size))
        line.append("█" * (end - start), style=COLOURS[kind])
        done += size
    return line.append(" " * (_BAR - len(line)))


def _legend(comparison: Comparison) -> Text:
    shown = [kind for kind in KINDS if any(kinds_of(row)[kind] for row in comparison.rows)]
    return Text("  ").join(Text.assemble(("█", COLOURS[kind]), f" {render(kind_name(kind))}") for kind in shown)


# As Markdown and HTML.


def comparison_as_markdown(comparison: Comparison, language: str = ENGLISH) -> str:
    """The table for a README or an issue."""
    text, names = renderer(language), columns(comparison)
    lines = [[text(heading(comparison, column)) for column in names], ["---"] * len(names)]
    for row in comparison.rows:
        values = cells(comparison, row, text)
        lines.append([f"`{values[column]}`" if column == "recipe" else values[column] for column in names])
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"{text(about(comparison))}\n\n{table}"


def comparison_as_html(comparison: Comparison, language: str | None = None) -> str:
    """The chart and the table for a notebook or a page."""
    text, names = renderer(language), columns(comparison)
    head = "".join(f"<th>{text(heading(comparison, column))}</th>" for column in names)
    rows = [cells(comparison, row, text) for row in comparison.rows]
    body = "".join(f"<tr>{''.join(_cell(column, row[column]) for column in names)}</tr>" for row in rows)
    chart = as_svg(comparison_chart(comparison, text), text(TITLE))
    table = f"<div class='scroll'><table><tr>{head}</tr>{body}</table></div>"
    return f"<p>{escape(text(about(comparison)))}</p><figure>{chart}</figure>{table}"


def _cell(name: str, text: str) -> str:
    if name == "recipe":
        return f"<td style='min-width: 9rem'><code>{escape(text)}</code></td>"
    if name == "change":
        return f"<td style='min-width: 13rem'>{escape(text)}</td>"
    return f"<td class='number'>{escape(text)}</td>"
