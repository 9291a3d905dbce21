"""Results as text for a terminal."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tightfit.comparison.comparison import Ladder, Row, grown_from, shrunk
from tightfit.files import write_whole
from tightfit.inference import Evaluation, Prediction
from tightfit.planning.plan import Option, Plan
from tightfit.report.i18n import Words
from tightfit.runs.record import Run
from tightfit.simulation.estimate import Bill
from tightfit.strategies import STRATEGIES
from tightfit.strategies.base import REQUIRED, Kind
from tightfit.units import format_bytes, format_count, format_seconds

_BAR = 12


def show_run(run: Run, console: Console) -> None:
    """What was trained, how good it is, what it took, where the memory went."""
    trained = f"{format_count(run.trainable_parameters)} of {format_count(run.parameters)} parameters"
    console.print(f"\n{run.folder}: {trained} trained in {run.steps} steps", markup=False, style="bold")
    console.print(f"recipe    {' '.join(run.recipe) or 'plain'} (result: {run.result})", markup=False)
    scores = [f"{name} {run.metrics[f'eval_{name}']:.4f}" for name in ("f1", "accuracy", "loss")]
    console.print(f"quality   {', '.join(scores)} on {run.data.validation_rows:,} held-out rows")
    per_step = run.measured.seconds_per_step
    foretold_step = run.predicted.seconds_per_step
    expected = f" (foretold {format_seconds(foretold_step)})" if foretold_step else ""
    pace = f", {format_seconds(per_step)} a step{expected}" if per_step else ""
    console.print(f"time      {format_seconds(run.measured.seconds)}{pace}")
    foretold = run.predicted.peak_bytes
    beside = f", foretold {format_bytes(foretold)}" if foretold else ""
    console.print(f"memory    peak {format_bytes(run.measured.peak_bytes)} on {run.device}{beside}")
    console.print(_moments(run))


def _moments(run: Run) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("  moment", "measured", "foretold", "", ""):
        table.add_column(heading, justify="right" if heading in ("measured", "foretold") else "left")
    foretold = run.predicted.moments or {}
    for moment, size in run.measured.moments.items():
        bar = Text("█" * max(1, round(_BAR * size / run.measured.peak_bytes)))
        mark = "← peak" if size == run.measured.peak_bytes else ""
        before = format_bytes(foretold[moment]) if moment in foretold else "–"
        table.add_row(f"  {moment}", format_bytes(size), before, bar, mark)
    return table


def show_bill(bill: Bill, console: Console) -> None:
    """Bytes by moment and kind, with a bar that can be read at a glance, and whether the device has that much."""
    trained = f"{format_count(bill.trainable_parameters)} of {format_count(bill.parameters)} parameters train"
    console.print(f"peak {format_bytes(bill.peak)} in {bill.moment} on {bill.device.title}; {trained}", style="bold")
    console.print(_by_moment_and_kind(bill))
    overhead = "the process itself" if bill.device.kind == "cpu" else "the card's own"
    console.print(f"{format_bytes(bill.overhead)} of each is {overhead}; {bill.worst}.", markup=False)
    if bill.host:
        console.print(_beside_the_card(bill), markup=False)
    console.print(_verdict(bill), markup=False)


def _beside_the_card(bill: Bill) -> str:
    there = bill.device.host_memory
    has = "" if there is None else f", which has {format_bytes(there)}: {'it fits' if bill.fits_host else 'too little'}"
    return f"{format_bytes(bill.host)} beside it wait in the memory of the machine around the card{has}."


def _by_moment_and_kind(bill: Bill) -> Table:
    kinds = [kind for kind in Kind if max(sizes.get(kind, 0) for sizes in bill.moments.values()) > bill.peak / 200]
    unit, name = (1 << 30, "GiB") if bill.peak >= 1 << 30 else (1 << 20, "MiB")
    table = Table(box=None, pad_edge=False)
    table.add_column(name, no_wrap=True)
    for heading in ("all", *(_SHORT.get(kind, kind.value) for kind in kinds)):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    for moment, sizes in bill.moments.items():
        total = bill.overhead + sum(sizes.values())
        cells = [f"{size / unit:.2f}" for size in (total, *(sizes[kind] for kind in kinds))]
        mark = " ←" if moment == bill.moment else ""
        table.add_row(moment, *cells, _bar(total - sizes[Kind.ALLOCATOR], total, bill.peak) + mark)
    return table


def _bar(used: int, held: int, peak: int) -> str:
    """What is used as a solid bar, what the allocator only holds as a pale one behind it."""
    solid = max(1, round(_BAR * used / peak))
    return "█" * solid + "░" * (round(_BAR * held / peak) - solid)


_SHORT = {
    Kind.GRADIENTS: "grads",
    Kind.OPTIMIZER_STATE: "state",
    Kind.ACTIVATIONS: "activ.",
    Kind.TEMPORARY: "temp",
    Kind.ALLOCATOR: "held",
}


def _verdict(bill: Bill) -> str:
    low, high = (format_bytes(size) for size in bill.error_band)
    band = f"Measured runs say: between {low} and {high}."
    if bill.device.memory is None:
        return band
    there = f"{bill.device.title} has {format_bytes(bill.device.memory)}"
    if bill.fits:
        return f"{band} It fits: {there}."
    if not bill.fits_host:
        return f"{band} It does not fit the machine around the card."
    if bill.peak <= bill.device.memory:
        return f"{band} It may not fit: {there}."
    return f"{band} It does not fit: {there}, {format_bytes(bill.peak - bill.device.memory)} too little."


def show_strategies(console: Console) -> None:
    """The list of strategies, two lines each so that it fits any terminal."""
    for row in strategy_rows():
        settings = f"   settings: {row.settings}" if row.settings else ""
        console.print(f"[bold]{row.name}[/bold]   result: {row.result}   frees: {row.frees or 'nothing'}{settings}")
        console.print(f"    {row.summary}", markup=False)
    console.print("\nUse them as --use name:key=value,key=value, as often as needed.")
    console.print("same: equal to rounding; close: other arithmetic, the same quality; different: another training.")


@dataclass(frozen=True)
class StrategyRow:
    """One strategy as the terminal and the README show it."""

    name: str
    result: str
    frees: str
    summary: str
    settings: str


def strategy_rows() -> list[StrategyRow]:
    """Every strategy, in the order of the list."""
    return [
        StrategyRow(
            name=strategy.name,
            result=strategy.result.value,
            frees=", ".join(kind.value for kind in strategy.frees),
            summary=strategy.summary,
            settings=", ".join(f"{key}={_default(value)}" for key, value in strategy.settings().items()),
        )
        for strategy in STRATEGIES.values()
    ]


def _default(value: object) -> str:
    if value is None or value == "" or value is REQUIRED:
        return "…"
    return str(value).lower() if isinstance(value, bool) else str(value)


def show_evaluation(evaluation: Evaluation, console: Console) -> None:
    """Scores on held-out rows."""
    scores = ", ".join(f"{name.removeprefix('eval_')} {value:.4f}" for name, value in evaluation.metrics.items())
    console.print(f"{scores} on {evaluation.rows:,} rows")


def show_predictions(texts: list[str], predictions: list[Prediction], console: Console) -> None:
    """One line a text."""
    for text, prediction in zip(texts, predictions, strict=True):
        console.print(f"{prediction.label}\t{prediction.confidence:.1%}\t{text}", markup=False)


# A plan as text for a terminal and as HTML for a notebook.


_WIDTH = 100
_EFFECT = {
    "same": "equal to rounding",
    "close": "other arithmetic, the same quality",
    "different": "another training",
}


def show_plan(plan: Plan, console: Console) -> None:
    """What the plain way needs, what to do instead and why, what else there is."""
    console.print(verdict(plan), style="bold", markup=False)
    console.print(f"\nThe plain way  {plain_way(plan)}", markup=False)
    for heading, lines in sections(plan):
        console.print(f"\n{heading}", style="bold", markup=False)
        for line in lines:
            console.print(f"  {line}", markup=False)
    if plan.alternatives:
        console.print("\nOther ways that fit", style="bold")
        for line in _table(plan):
            console.print(f"  {line}", markup=False)


def plan_as_text(plan: Plan) -> str:
    """The same without colours."""
    page = StringIO()
    show_plan(plan, Console(file=page, width=_WIDTH, no_color=True, soft_wrap=True))
    return page.getvalue()


def verdict(plan: Plan) -> str:
    """The plan in two sentences."""
    chosen = plan.chosen
    if not plan.fits:
        return f"It does not fit {plan.budget}. The closest is {chosen.title}: {_cost(chosen)}."
    return f"It fits {plan.budget}: {chosen.title}\n{_cost(chosen)}; result: {_effect(chosen)}."


def plain_way(plan: Plan) -> str:
    """What the plain way takes and where it goes."""
    bill = plan.plain.bill
    kinds = sorted(bill.moments[bill.moment].items(), key=lambda item: -item[1])
    shares = [f"{kind.value} {format_bytes(size)}" for kind, size in kinds if size > bill.peak / 50]
    overhead = "the process itself" if bill.device.kind == "cpu" else "the card's own"
    where = ", ".join([*shares, f"{overhead} {format_bytes(bill.overhead)}"])
    fits = "fits" if plan.plain.keeps_to(plan.budget) else "does not fit"
    return f"{_cost(plan.plain)} ({where}): {fits}"


def sections(plan: Plan) -> Iterator[tuple[str, list[str]]]:
    """Headings and their lines."""
    if plan.reasons:
        yield "Why", list(plan.reasons)
    if plan.ways_out:
        yield "Ways out", list(plan.ways_out)
    if plan.advice:
        yield "Shorter texts, if you want them (--max-length)", list(plan.advice)
    if plan.refused:
        yield "Not taken", list(plan.refused)


def plan_as_html(plan: Plan) -> str:
    """For a notebook: plain tags that take the page's own colours."""
    parts = [f"<p><b>{escape(verdict(plan)).replace(chr(10), '<br>')}</b></p>"]
    parts.append(f"<p>The plain way: {escape(plain_way(plan))}</p>")
    for heading, lines in sections(plan):
        items = "".join(f"<li>{escape(line)}</li>" for line in lines)
        parts.append(f"<details{' open' if heading == 'Why' else ''}><summary>{escape(heading)}</summary>")
        parts.append(f"<ul>{items}</ul></details>")
    rows = [_row(option) for option in (plan.chosen, *plan.alternatives, plan.plain)]
    cells = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    parts.append(f"<table><tr>{''.join(f'<th>{name}</th>' for name in _HEADINGS)}</tr>{cells}</table>")
    return "".join(parts)


_HEADINGS = ("peak", "an epoch", "result", "recipe")


def _table(plan: Plan) -> list[str]:
    """Narrow columns first: recipes may be longer than a terminal is wide."""
    rows = [_HEADINGS, *(_row(option) for option in plan.alternatives)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS) - 1)]
    return ["  ".join(cell.rjust(w) for cell, w in zip(row, [*widths, 0], strict=True)) for row in rows]


def _row(option: Option) -> tuple[str, str, str, str]:
    return format_bytes(option.peak), format_seconds(option.seconds_per_epoch), option.result.value, option.title


def _cost(option: Option) -> str:
    held = option.bill.moments[option.bill.moment][Kind.ALLOCATOR]
    aside = f", {format_bytes(held)} of it held by the allocator" if held > option.peak / 50 else ""
    time = f"about {format_seconds(option.seconds_per_epoch)} an epoch"
    host = f", {format_bytes(option.bill.host)} in the machine's own memory" if option.bill.host else ""
    return f"peak {format_bytes(option.peak)} in {option.bill.moment}{aside}{host}, {time}"


def _effect(option: Option) -> str:
    return f"{option.result.value} ({_EFFECT[option.result.value]})"


# A ladder as a table: in a terminal, as Markdown, and as a page with a picture.


_COMPARISON_BAR, _COMPARISON_WIDTH = 16, 120
_COLOURS = {
    "process": "white",
    "weights": "blue",
    "gradients": "green",
    "optimizer state": "yellow",
    "activations": "red",
    "temporary": "magenta",
}
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
    said = [
        f"{kind_word(kind, words)} {'−' if lost > 0 else '+'}{format_bytes(abs(lost))}"
        for kind, lost in changes.items()
    ]
    return f"{', '.join(said)} ({words.ladder('against', rung=before.title)})"


def kind_word(kind: str, words: Words) -> str:
    """A kind of memory, or what is there without any tensor."""
    return words.kind("overhead" if kind == "process" else kind)


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
        console.print(Text.assemble(figures, "  ", _comparison_bar(ladder, row), f"  {row.title}"))
        if found["shrank"]:
            console.print(f"{'':{len(figures) + _BAR + 4}}{found['shrank']}", style="dim", markup=False)
    console.print(_legend(ladder))


def ladder_as_text(ladder: Ladder) -> str:
    """The same without colours."""
    page = StringIO()
    show_ladder(ladder, Console(file=page, width=_COMPARISON_WIDTH, no_color=True, soft_wrap=True))
    return page.getvalue()


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))


def _comparison_bar(ladder: Ladder, row: Row) -> Text:
    """The foretold peak by kind, as long as the largest rung lets it be."""
    largest = max((r.foretold.peak_bytes for r in ladder.rows if r.foretold), default=1)
    line, done = Text(), 0
    for kind, size in kinds_of(row).items():
        start, end = (round(_COMPARISON_BAR * edge / largest) for edge in (done, done + size))
        line.append("█" * (end - start), style=_COLOURS[kind])
        done += size
    return line.append(" " * (_COMPARISON_BAR - len(line)))


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
    words, names = Words.of(language), columns(ladder)
    lines = [[words.ladder(name) for name in names], ["---"] * len(names)]
    for row in ladder.rows:
        found = cells(ladder, row, words)
        lines.append([f"`{found[name]}`" if name == "rung" else found[name] for name in names])
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"{about(ladder, words)}\n\n{table}"


def ladder_as_html(ladder: Ladder, language: str = "en") -> str:
    """The picture and the table, for a notebook or a page."""
    from tightfit.report.charts import as_svg, ladder_picture

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
    from tightfit.report.charts import as_png, ladder_picture
    from tightfit.report.html import page

    title = Words.of(language).ladder("title")
    body = f"<h1>{title}</h1>{ladder_as_html(ladder, language)}"
    write_whole(folder / "ladder.md", ladder_as_markdown(ladder, language))
    write_whole(folder / "ladder.html", page(title, body, language))
    (folder / "ladder.png").write_bytes(
        as_png(ladder_picture(ladder, Words.of("en")))
    )  # fonts for Chinese may be missing
