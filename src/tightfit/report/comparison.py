"""A comparison as a table: in a terminal, as Markdown, and as a page with a chart."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from html import escape
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tightfit.comparison.comparison import KINDS, Comparison, ComparisonRow, kinds_of, parent_row, savings
from tightfit.files import atomic_write
from tightfit.report.charts import COLOURS, as_png, as_svg, comparison_chart
from tightfit.report.html import page
from tightfit.report.i18n.strings import Strings
from tightfit.tasks import find_task
from tightfit.tasks.base import Task
from tightfit.units import format_bytes

_BAR, _WIDTH = 16, 120
_COLUMNS = ("recipe", "measured", "predicted", "phase", "time_per_step", "time_per_epoch", "score", "result", "change")


def write_comparison(comparison: Comparison, folder: Path, language: str) -> None:
    """Write comparison.md, comparison.html and comparison.png beside comparison.json."""
    title = Strings.of(language).comparison("title")
    body = f"<h1>{title}</h1>{comparison_as_html(comparison, language)}"
    atomic_write(folder / "comparison.md", comparison_as_markdown(comparison, language))
    atomic_write(folder / "comparison.html", page(title, body, language))
    chart = comparison_chart(comparison, _strings(comparison, "en"))  # in English: fonts for Chinese may be missing
    (folder / "comparison.png").write_bytes(as_png(chart))


def _strings(comparison: Comparison, language: str) -> Strings:
    return Strings.of(language).for_devices([comparison.device])


# The table, in any format.


def columns(comparison: Comparison) -> list[str]:
    """The columns of the table: the score only if a run trained for all epochs."""
    scored = any(row.scores(_task(comparison).best.name) for row in comparison.rows)
    return [name for name in _COLUMNS if scored or name != "score"]


def heading(comparison: Comparison, column: str, strings: Strings) -> str:
    """The heading of a column; that of the score is the name of the task's best metric."""
    task = _task(comparison)
    return strings.metric(task, task.best) if column == "score" else strings.comparison(column)


def _task(comparison: Comparison) -> Task:
    return find_task(comparison.job.task)


def cells(comparison: Comparison, row: ComparisonRow, strings: Strings) -> dict[str, str]:
    """The values of a row as text; if it was not measured, the reason is in the column `change`."""
    per_step, per_epoch = row.seconds_per_step, row.seconds_per_epoch
    values = {
        "recipe": row.title,
        "measured": row.peak and format_bytes(row.peak),
        "predicted": row.predicted_peak and format_bytes(row.predicted_peak),
        "phase": row.phase and strings.phase(row.phase),
        "time_per_step": per_step and strings.seconds(per_step),
        "time_per_epoch": per_epoch and strings.seconds(per_epoch),
        "score": _score(row.scores(_task(comparison).best.name)),
        "result": strings.comparison(row.result),
    }
    change = row.failed or _change(comparison, row, strings)
    return {name: str(value or "–") for name, value in values.items()} | {"change": change}


def _score(scores: list[float]) -> str:
    """The mean over the seeds, and how much they differ."""
    spread = f" ± {(max(scores) - min(scores)) / 2:.4f}" if len(scores) > 1 else ""
    return f"{statistics.mean(scores):.4f}{spread}" if scores else ""


def _change(comparison: Comparison, row: ComparisonRow, strings: Strings) -> str:
    """Every kind of memory that changed, as in "activations −9.1 GiB (vs baseline)"."""
    changes, parent = savings(comparison, row), parent_row(comparison, row)
    if parent is None or not changes:
        return ""
    sizes = [
        f"{strings.kind(kind)} {'−' if saved > 0 else '+'}{format_bytes(abs(saved))}" for kind, saved in changes.items()
    ]
    return strings.comparison("changes", changes=strings.join(sizes), row=parent.title)


def about(comparison: Comparison, strings: Strings) -> str:
    """The model, the data, the batch, the device and the length of each run."""
    job = comparison.job
    if comparison.steps is None:
        how_long = strings.comparison("full_training")
    else:
        how_long = strings.comparison("some_steps", steps=comparison.steps)
    return strings.comparison(
        "about",
        model=Path(job.model).name,
        data=Path(job.data).name,
        rows=job.batch_size,
        tokens=job.max_length,
        device=strings.device(comparison.device),
        how_long=how_long,
    )


# In a terminal.


def show_comparison(comparison: Comparison, console: Console) -> None:
    """A line for each row with the change below it. Recipes are last: they may be longer than a terminal is wide."""
    strings = _strings(comparison, "en")
    console.print(f"\n{about(comparison, strings)}", style="bold", markup=False)
    names = [name for name in columns(comparison) if name not in ("recipe", "phase", "change")]
    headings = [heading(comparison, name, strings) for name in names]
    rows = [cells(comparison, row, strings) for row in comparison.rows]
    widths = [
        max(map(len, (heading, *(row[name] for row in rows)))) for name, heading in zip(names, headings, strict=True)
    ]
    console.print(f"{_aligned(headings, widths)}  {'':{_BAR}}  recipe", style="dim", markup=False)
    for row, values in zip(comparison.rows, rows, strict=True):
        line = _aligned([values[name] for name in names], widths)
        console.print(Text.assemble(line, "  ", _bar(comparison, row), f"  {row.title}"))
        if values["change"]:
            console.print(f"{'':{len(line) + _BAR + 4}}{values['change']}", style="dim", markup=False)
    console.print(_legend(comparison, strings))


def comparison_as_text(comparison: Comparison) -> str:
    """The table without colours."""
    page = StringIO()
    show_comparison(comparison, Console(file=page, width=_WIDTH, no_color=True, soft_wrap=True))
    return page.getvalue()


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))


def _bar(comparison: Comparison, row: ComparisonRow) -> Text:
    """The predicted peak by kind, relative to the largest row."""
    largest = max((r.predicted.peak_bytes for r in comparison.rows if r.predicted), default=1)
    line, done = Text(), 0
    for kind, size in kinds_of(row).items():
        start, end = (round(_BAR * edge / largest) for edge in (done, done + size))
        line.append("█" * (end - start), style=COLOURS[kind])
        done += size
    return line.append(" " * (_BAR - len(line)))


def _legend(comparison: Comparison, strings: Strings) -> Text:
    shown = [kind for kind in KINDS if any(kinds_of(row)[kind] for row in comparison.rows)]
    return Text("  ").join(Text.assemble(("█", COLOURS[kind]), f" {strings.kind(kind)}") for kind in shown)


# As Markdown and HTML.


def comparison_as_markdown(comparison: Comparison, language: str = "en") -> str:
    """The table for a README or an issue."""
    strings, names = _strings(comparison, language), columns(comparison)
    lines = [[heading(comparison, name, strings) for name in names], ["---"] * len(names)]
    for row in comparison.rows:
        values = cells(comparison, row, strings)
        lines.append([f"`{values[name]}`" if name == "recipe" else values[name] for name in names])
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"{about(comparison, strings)}\n\n{table}"


def comparison_as_html(comparison: Comparison, language: str = "en") -> str:
    """The chart and the table for a notebook or a page."""
    strings, names = _strings(comparison, language), columns(comparison)
    head = "".join(f"<th>{heading(comparison, name, strings)}</th>" for name in names)
    rows = [cells(comparison, row, strings) for row in comparison.rows]
    body = "".join(f"<tr>{''.join(_cell(name, row[name]) for name in names)}</tr>" for row in rows)
    chart = as_svg(comparison_chart(comparison, strings), strings.comparison("title"))
    table = f"<div class='scroll'><table><tr>{head}</tr>{body}</table></div>"
    return f"<p>{escape(about(comparison, strings))}</p><figure>{chart}</figure>{table}"


def _cell(name: str, text: str) -> str:
    if name == "recipe":
        return f"<td style='min-width: 9rem'><code>{escape(text)}</code></td>"
    if name == "change":
        return f"<td style='min-width: 13rem'>{escape(text)}</td>"
    return f"<td class='number'>{escape(text)}</td>"
