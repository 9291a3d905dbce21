"""A ladder as a table: in a terminal, as Markdown, and as a page with a picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tightfit.ladders.record import Ladder, Row
from tightfit.ladders.shrinking import grown_from, shrunk
from tightfit.report.ladder_words import WORDS, Words, words_of
from tightfit.units import format_bytes, format_seconds
from tightfit.whole import write_whole

_BAR, _WIDTH = 16, 120
_COLOURS = {
    "process": "white",
    "weights": "blue",
    "gradients": "green",
    "optimizer state": "yellow",
    "activations": "red",
    "temporary": "magenta",
}


def show_ladder(ladder: Ladder, console: Console) -> None:
    """A line for each rung, what it shrank below it."""
    words = WORDS["en"]
    console.print(f"\n{about(ladder, words)}", style="bold", markup=False)
    rows = [cells(ladder, row, words) for row in ladder.rows]
    score = any(row.scores("f1") for row in ladder.rows)
    names = ["peak", "foretold", "a step", "an epoch", *(["F1"] if score else []), "result"]
    lines = [[*row[:4], *(row[4:5] if score else ()), row[5]] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *lines, strict=True)]
    console.print(f"{_aligned(names, widths)}  {'':{_BAR}}  rung", style="dim", markup=False)
    for row, line, (*_, title, why) in zip(ladder.rows, lines, rows, strict=True):
        console.print(Text.assemble(_aligned(line, widths), "  ", _bar(ladder, row), "  ", title))
        if why:
            console.print(f"{'':{sum(widths) + 2 * len(widths) + _BAR + 2}}{why}", style="dim", markup=False)
    console.print(_legend(ladder))


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    """Narrow columns: recipes come last, they may be longer than a terminal is wide."""
    return "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))


def ladder_as_text(ladder: Ladder) -> str:
    """The same without colours."""
    page = StringIO()
    show_ladder(ladder, Console(file=page, width=_WIDTH, no_color=True, soft_wrap=True))
    return page.getvalue()


def about(ladder: Ladder, words: Words) -> str:
    """What was trained, and for how long."""
    job = ladder.job
    what = f"{Path(job.model).name}, {Path(job.data).name}, {job.batch_size} × {job.max_length}, {ladder.device}"
    return f"{what}; {words['to the end'] if ladder.steps is None else words['steps'].format(ladder.steps)}"


def cells(ladder: Ladder, row: Row, words: Words) -> tuple[str, ...]:
    """Measured and foretold peak, a step, an epoch, F1, result, recipe, and what it shrank or why it is not there."""
    dash = "–"
    step, epoch = row.seconds_per_step, row.seconds_per_epoch
    return (
        format_bytes(row.peak) if row.peak else dash,
        format_bytes(row.foretold_peak) if row.foretold_peak else dash,
        format_seconds(step) if step else dash,
        format_seconds(epoch) if epoch else dash,
        _score(row) or dash,
        row.result,
        row.title,
        row.failed or _shrank(ladder, row, words),
    )


def _score(row: Row) -> str:
    scores = row.scores("f1")
    spread = f" ± {(max(scores) - min(scores)) / 2:.4f}" if len(scores) > 1 else ""
    return f"{statistics.mean(scores):.4f}{spread}" if scores else ""


def _shrank(ladder: Ladder, row: Row, words: Words) -> str:
    """Every kind that changed, as in "activations −9.1 GiB"."""
    changes = shrunk(ladder, row)
    before = grown_from(ladder, row)
    if before is None or not changes:
        return ""
    said = [f"{words[kind]} {'−' if size > 0 else '+'}{format_bytes(abs(size))}" for kind, size in changes.items()]
    return f"{', '.join(said)} ({words['against'].format(before.title)})"


def _bar(ladder: Ladder, row: Row) -> Text:
    """The foretold peak by kind, as long as the largest rung lets it be."""
    largest = max((r.foretold.peak_bytes for r in ladder.rows if r.foretold), default=1)
    line = Text()
    done = 0
    for kind, size in kinds_of(row).items():
        end = done + size
        cut = [round(_BAR * edge / largest) for edge in (done, end)]
        line.append("█" * (cut[1] - cut[0]), style=_COLOURS.get(kind, "cyan"))
        done = end
    line.append(" " * (_BAR - len(line)))
    return line


def kinds_of(row: Row) -> dict[str, int]:
    """What was foretold at the peak, in the order of the colours; small kinds together."""
    kinds = dict(row.foretold.kinds) if row.foretold else {}
    shown = {kind: kinds.pop(kind, 0) for kind in _COLOURS}
    shown["temporary"] += sum(kinds.values())
    return shown


def _legend(ladder: Ladder) -> Text:
    there = [kind for kind in _COLOURS if any(kinds_of(row)[kind] for row in ladder.rows)]
    return Text("  ").join(Text.assemble(("█", _COLOURS[kind]), f" {kind}") for kind in there)


def ladder_as_markdown(ladder: Ladder, language: str = "en") -> str:
    """For a README or an issue."""
    words = words_of(language)
    names = [words[name] for name in ("rung", "measured", "foretold", "a step", "an epoch", "result", "shrank")]
    score = any(row.scores("f1") for row in ladder.rows)
    lines = [[*names[:5], *(["F1"] if score else []), *names[5:]]]
    lines.append(["---"] * len(lines[0]))
    for row in ladder.rows:
        measured, foretold, step, epoch, f1, result, title, why = cells(ladder, row, words)
        lines.append([f"`{title}`", measured, foretold, step, epoch, *([f1] if score else []), f"`{result}`", why])
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"{about(ladder, words)}\n\n{table}"


def ladder_as_html(ladder: Ladder, language: str) -> str:
    """The picture and the table, for a notebook or a page."""
    from html import escape

    from tightfit.report.pictures.drawing import as_svg
    from tightfit.report.pictures.ladder import ladder_picture

    words = words_of(language)
    score = any(row.scores("f1") for row in ladder.rows)
    head = ["rung", "measured", "foretold", "a step", "an epoch", *(["F1"] if score else []), "result", "shrank"]
    rows = []
    for row in ladder.rows:
        measured, foretold, step, epoch, f1, result, title, why = cells(ladder, row, words)
        line = [f"<code>{escape(title)}</code>", measured, foretold, step, epoch, *([f1] if score else [])]
        rows.append([*line, words[result], escape(why)])
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in line) + "</tr>" for line in rows)
    table = f"<table><tr>{''.join(f'<th>{words.get(name, name)}</th>' for name in head)}</tr>{body}</table>"
    picture = as_svg(ladder_picture(ladder, words))
    return f"<p>{escape(about(ladder, words))}</p><figure>{picture}</figure><div class='scroll'>{table}</div>"


def write_ladder(ladder: Ladder, folder: Path, language: str) -> None:
    """ladder.md, ladder.html and ladder.png beside ladder.json."""
    from tightfit.report.page import page
    from tightfit.report.pictures.drawing import as_png
    from tightfit.report.pictures.ladder import ladder_picture

    words = words_of(language)
    write_whole(folder / "ladder.md", ladder_as_markdown(ladder, language))
    write_whole(folder / "ladder.html", page(words["ladder"], ladder_as_html(ladder, language), language))
    (folder / "ladder.png").write_bytes(as_png(ladder_picture(ladder, WORDS["en"])))  # fonts for Chinese may be missing
