"""A comparison as a table: in a terminal, as Markdown, and as a page with a picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from html import escape
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tightfit.comparison.comparison import KINDS, Ladder, Row, grown_from, kinds_of, shrunk
from tightfit.files import write_whole
from tightfit.report.charts import COLOURS, as_png, as_svg, ladder_picture
from tightfit.report.html import page
from tightfit.report.i18n import Words
from tightfit.units import format_bytes, format_seconds

_BAR, _WIDTH = 16, 120
_COLUMNS = ("rung", "measured", "foretold", "moment", "a step", "an epoch", "F1", "result", "shrank")


def columns(ladder: Ladder) -> list[str]:
    """What there is to be shown: F1 only where a training ran to its end."""
    scored = any(row.scores("f1") for row in ladder.rows)
    return [name for name in _COLUMNS if scored or name != "F1"]


def cells(ladder: Ladder, row: Row, words: Words) -> dict[str, str]:
    """A rung's figures as text; where it was not measured the reason stands in place of what it shrank."""
    step, epoch = row.seconds_per_step, row.seconds_per_epoch
    found = {
        "rung": row.title,
        "measured": row.peak and format_bytes(row.peak),
        "foretold": row.foretold_peak and format_bytes(row.foretold_peak),
        "moment": row.moment and words.moment(row.moment),
        "a step": step and format_seconds(step),
        "an epoch": epoch and format_seconds(epoch),
        "F1": _score(row),
        "result": words.ladder(row.result),
    }
    return {name: str(cell or "–") for name, cell in found.items()} | {
        "shrank": row.failed or _shrank(ladder, row, words)
    }


def about(ladder: Ladder, words: Words) -> str:
    """What was trained, and for how long."""
    job, device = ladder.job, words.device(ladder.device)
    what = f"{Path(job.model).name}, {Path(job.data).name}, {job.batch_size} × {job.max_length}, {device}"
    how_long = words.ladder("to the end") if ladder.steps is None else words.ladder("some steps", steps=ladder.steps)
    return f"{what}; {how_long}"


def _score(row: Row) -> str:
    scores = row.scores("f1")
    spread = f" ± {(max(scores) - min(scores)) / 2:.4f}" if len(scores) > 1 else ""
    return f"{statistics.mean(scores):.4f}{spread}" if scores else ""


def _shrank(ladder: Ladder, row: Row, words: Words) -> str:
    """Every kind that changed, as in "activations −9.1 GiB"."""
    changes, before = shrunk(ladder, row), grown_from(ladder, row)
    if before is None or not changes:
        return ""
    said = [f"{words.kind(kind)} {'−' if lost > 0 else '+'}{format_bytes(abs(lost))}" for kind, lost in changes.items()]
    return f"{', '.join(said)} ({words.ladder('against', rung=before.title)})"


def show_ladder(ladder: Ladder, console: Console) -> None:
    """A line for each rung, what it shrank below it. Recipes come last: they may be longer than a terminal is wide."""
    words = Words.of("en")
    console.print(f"\n{about(ladder, words)}", style="bold", markup=False)
    names = [name for name in columns(ladder) if name not in ("rung", "moment", "shrank")]
    rows = [cells(ladder, row, words) for row in ladder.rows]
    widths = [max(map(len, (name, *(row[name] for row in rows)))) for name in names]
    console.print(f"{_aligned(names, widths)}  {'':{_BAR}}  rung", style="dim", markup=False)
    for row, found in zip(ladder.rows, rows, strict=True):
        figures = _aligned([found[name] for name in names], widths)
        console.print(Text.assemble(figures, "  ", _bar(ladder, row), f"  {row.title}"))
        if found["shrank"]:
            console.print(f"{'':{len(figures) + _BAR + 4}}{found['shrank']}", style="dim", markup=False)
    console.print(_legend(ladder))


def ladder_as_text(ladder: Ladder) -> str:
    """The same without colours."""
    page = StringIO()
    show_ladder(ladder, Console(file=page, width=_WIDTH, no_color=True, soft_wrap=True))
    return page.getvalue()


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))


def _bar(ladder: Ladder, row: Row) -> Text:
    """The foretold peak by kind, as long as the largest rung lets it be."""
    largest = max((r.foretold.peak_bytes for r in ladder.rows if r.foretold), default=1)
    line, done = Text(), 0
    for kind, size in kinds_of(row).items():
        start, end = (round(_BAR * edge / largest) for edge in (done, done + size))
        line.append("█" * (end - start), style=COLOURS[kind])
        done += size
    return line.append(" " * (_BAR - len(line)))


def _legend(ladder: Ladder) -> Text:
    there = [kind for kind in KINDS if any(kinds_of(row)[kind] for row in ladder.rows)]
    return Text("  ").join(Text.assemble(("█", COLOURS[kind]), f" {kind}") for kind in there)


def ladder_as_markdown(ladder: Ladder, language: str = "en") -> str:
    """For a README or an issue."""
    words, names = Words.of(language), columns(ladder)
    lines = [[words.ladder(name) for name in names], ["---"] * len(names)]
    for row in ladder.rows:
        found = cells(ladder, row, words)
        lines.append([f"`{found[name]}`" if name == "rung" else found[name] for name in names])
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"{about(ladder, words)}\n\n{table}"


def ladder_as_html(ladder: Ladder, language: str = "en") -> str:
    """The picture and the table, for a notebook or a page."""

    words, names = Words.of(language), columns(ladder)
    head = "".join(f"<th>{words.ladder(name)}</th>" for name in names)
    rows = [cells(ladder, row, words) for row in ladder.rows]
    body = "".join(f"<tr>{''.join(_cell(name, row[name]) for name in names)}</tr>" for row in rows)
    picture = as_svg(ladder_picture(ladder, words), words.ladder("title"))
    table = f"<div class='scroll'><table><tr>{head}</tr>{body}</table></div>"
    return f"<p>{escape(about(ladder, words))}</p><figure>{picture}</figure>{table}"


def _cell(name: str, text: str) -> str:
    if name == "rung":
        return f"<td style='min-width: 9rem'><code>{escape(text)}</code></td>"
    if name == "shrank":
        return f"<td style='min-width: 13rem'>{escape(text)}</td>"
    return f"<td class='number'>{escape(text)}</td>"


def write_ladder(ladder: Ladder, folder: Path, language: str) -> None:
    """ladder.md, ladder.html and ladder.png beside ladder.json."""
    title = Words.of(language).ladder("title")
    body = f"<h1>{title}</h1>{ladder_as_html(ladder, language)}"
    write_whole(folder / "ladder.md", ladder_as_markdown(ladder, language))
    write_whole(folder / "ladder.html", page(title, body, language))
    (folder / "ladder.png").write_bytes(
        as_png(ladder_picture(ladder, Words.of("en")))
    )  # fonts for Chinese may be missing
