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
from tightfit.i18n import ENGLISH, Render, render, renderer
from tightfit.messages import Message, clauses, msg, name
from tightfit.report.charts import COLOURS, as_png, as_svg, chinese_font, comparison_chart
from tightfit.report.html import page
from tightfit.report.names import kind_name, phase_name, score
from tightfit.report.terminal import aligned
from tightfit.system.files import atomic_write
from tightfit.units import format_bytes, format_seconds, format_steps

_BAR, _WIDTH = 16, 100
_BUSY = 0.1  # of the CPU: more by other processes makes the measured times too long
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
    readable = language == ENGLISH or chinese_font()
    chart = comparison_chart(comparison, renderer(language if readable else ENGLISH))
    (folder / "comparison.png").write_bytes(as_png(chart))


def written_files(folder: Path) -> Message:
    """The files of a comparison, for the last line of the command."""
    files = [str(folder / f"comparison.{ending}") for ending in ("json", "md", "html", "png")]
    return msg("written: {files}", files=files)


# The table, in any format.


def columns(comparison: Comparison) -> list[str]:
    """The columns of the table: the score only if a run trained for all epochs."""
    return [column for column in _COLUMNS if column != "score" or _is_scored(comparison)]


def _is_scored(comparison: Comparison) -> bool:
    return any(row.scores(comparison.scoring.best.name) for row in comparison.rows)


def heading(comparison: Comparison, column: str) -> Message:
    """The heading of a column; that of the score is the name of the metric that chooses the best checkpoint."""
    return comparison.scoring.best.title if column == "score" else _HEADINGS[column]


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
        "score": _score(row.scores(comparison.scoring.best.name)),
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
    trained = msg(
        "{model}, {data}, {rows} × {tokens} tokens, {device}; {how_long}",
        model=Path(job.model).name,
        data=Path(job.data).name,
        rows=job.batch_size,
        tokens=job.max_length,
        device=name(comparison.device),
        how_long=msg("trained for all epochs") if steps is None else msg("{steps} each", steps=format_steps(steps)),
    )
    constant = _constant_score(comparison)
    return clauses(trained, constant) if constant else trained


def _constant_score(comparison: Comparison) -> Message | None:
    """What always giving the same answer gets, beside which the scores stand."""
    best = comparison.scoring.best
    scores = [value for row in comparison.rows for value in row.scores(best.constant_name)]
    if not scores or not _is_scored(comparison):
        return None
    constant, mean = comparison.scoring.constant, statistics.mean(scores)
    return msg("{constant}: {score}", constant=constant, score=score(best, mean))


# In a terminal.


def show_comparison(comparison: Comparison, console: Console) -> None:
    """Three lines for each row: the recipe, its numbers and a bar, and what changed. Long ones are wrapped."""
    console.print()
    _print_wrapped(console, render(about(comparison)), 0, "bold")
    names = [column for column in columns(comparison) if column not in ("recipe", "phase", "change")]
    rows = [cells(comparison, row, render) | {"result": row.result} for row in comparison.rows]
    headings = [render(heading(comparison, column)) for column in names]
    first, *lines = aligned([headings, *([row[column] for column in names] for row in rows)])
    width = min(console.width, _WIDTH)
    bar = max(0, min(_BAR, width - cell_len(first) - 4))
    console.print(f"  {first}", style="dim", markup=False)
    for row, line, values in zip(comparison.rows, lines, rows, strict=True):
        _print_wrapped(console, values["recipe"], 0, "bold")
        console.print(Text.assemble(f"  {line}  ", _bar(comparison, row, bar)))
        if values["change"]:
            _print_wrapped(console, values["change"], 2, "dim")
    for each in _legend(comparison).wrap(console, width):
        console.print(each)
    for note in notes(comparison):
        _print_wrapped(console, render(note), 0, "yellow")


def _print_wrapped(console: Console, text: str, indent: int, style: str) -> None:
    width = min(console.width, _WIDTH) - indent
    for number, line in enumerate(Text(text).wrap(console, width - 2)):
        console.print(f"{'':{indent + 2 * (number > 0)}}{line.plain.rstrip()}", style=style, markup=False)


def notes(comparison: Comparison) -> list[Message]:
    """Rows that were measured while other processes used the CPU."""
    busy = [row for row in comparison.rows if row.cpu_of_others > _BUSY]
    if not busy:
        return []
    return [
        msg(
            "The machine was busy: other processes used up to {share:.0%} of its CPU while {count} of {all} recipes "
            "were measured, so their times may be too long.",
            share=max(row.cpu_of_others for row in busy),
            count=len(busy),
            all=len(comparison.rows),
        )
    ]


def comparison_as_text(comparison: Comparison) -> str:
    """The table without colours."""
    page = StringIO()
    show_comparison(comparison, Console(file=page, width=_WIDTH, no_color=True, soft_wrap=True))
    return page.getvalue()


def _bar(comparison: Comparison, row: ComparisonRow, width: int) -> Text:
    """The predicted peak by kind, relative to the largest row."""
    largest = max((r.predicted.peak_bytes for r in comparison.rows if r.predicted), default=1)
    line, done = Text(), 0
    for kind, size in kinds_of(row).items():
        start, end = (round(width * edge / largest) for edge in (done, done + size))
        line.append("█" * (end - start), style=COLOURS[kind])
        done += size
    return line.append(" " * (width - len(line)))


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
    busy = "".join(f"\n{text(note)}\n" for note in notes(comparison))
    return f"{text(about(comparison))}\n\n{table}{busy}"


def comparison_as_html(comparison: Comparison, language: str | None = None) -> str:
    """The chart and the table for a notebook or a page."""
    text, names = renderer(language), columns(comparison)
    headings = {column: text(heading(comparison, column)) for column in names}
    head = "".join(f"<th>{headings[column]}</th>" for column in names)
    rows = [cells(comparison, row, text) for row in comparison.rows]
    body = "".join(
        f"<tr>{''.join(_cell(column, headings[column], row[column]) for column in names)}</tr>" for row in rows
    )
    chart = as_svg(comparison_chart(comparison, text), text(TITLE))
    busy = "".join(f"<p>{escape(text(note))}</p>" for note in notes(comparison))
    table = f"<div class='scroll'><table class='stack'><tr>{head}</tr>{body}</table></div>"
    return f"<p>{escape(text(about(comparison)))}</p><figure>{chart}</figure>{table}{busy}"


def _cell(column: str, heading: str, text: str) -> str:
    label = f"data-label='{escape(heading)}'"
    if column == "recipe":
        return f"<td {label}><code>{escape(text)}</code></td>"
    kind = "" if column == "change" else " class='number'"
    return f"<td {label}{kind}>{escape(text)}</td>"
