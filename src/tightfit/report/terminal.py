"""Results as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tightfit.planning.plan import Option, Plan
from tightfit.runs.record import Run
from tightfit.simulation.estimate import Estimate
from tightfit.strategies import STRATEGIES
from tightfit.strategies.base import REQUIRED, MemoryKind
from tightfit.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from tightfit.inference import Evaluation, Prediction

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
    predicted = run.predicted.peak_bytes
    beside = f", foretold {format_bytes(predicted)}" if predicted else ""
    console.print(f"memory    peak {format_bytes(run.measured.peak_bytes)} on {run.device}{beside}")
    console.print(_moments(run))


def _moments(run: Run) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("  moment", "measured", "predicted", "", ""):
        table.add_column(heading, justify="right" if heading in ("measured", "predicted") else "left")
    predicted = run.predicted.phases or {}
    for phase, size in run.measured.phases.items():
        bar = Text("█" * max(1, round(_BAR * size / run.measured.peak_bytes)))
        mark = "← peak" if size == run.measured.peak_bytes else ""
        before = format_bytes(predicted[phase]) if phase in predicted else "–"
        table.add_row(f"  {phase}", format_bytes(size), before, bar, mark)
    return table


def show_estimate(estimate: Estimate, console: Console) -> None:
    """Bytes by moment and kind, with a bar that can be read at a glance, and whether the device has that much."""
    trained = f"{format_count(estimate.trainable_parameters)} of {format_count(estimate.parameters)} parameters train"
    console.print(
        f"peak {format_bytes(estimate.peak)} in {estimate.phase} on {estimate.device.title}; {trained}", style="bold"
    )
    console.print(_by_moment_and_kind(estimate))
    overhead = "the process itself" if estimate.device.kind == "cpu" else "the card's own"
    console.print(f"{format_bytes(estimate.overhead)} of each is {overhead}; {estimate.worst}.", markup=False)
    for note in estimate.notes:
        console.print(note, markup=False)
    if estimate.host:
        console.print(_beside_the_card(estimate), markup=False)
    console.print(_verdict(estimate), markup=False)


def _beside_the_card(estimate: Estimate) -> str:
    there = estimate.device.host_memory
    has = (
        ""
        if there is None
        else f", which has {format_bytes(there)}: {'it fits' if estimate.fits_host else 'too little'}"
    )
    return f"{format_bytes(estimate.host)} beside it wait in the memory of the machine around the card{has}."


def _by_moment_and_kind(estimate: Estimate) -> Table:
    kinds = [
        kind
        for kind in MemoryKind
        if max(sizes.get(kind, 0) for sizes in estimate.phases.values()) > estimate.peak / 200
    ]
    unit, name = (1 << 30, "GiB") if estimate.peak >= 1 << 30 else (1 << 20, "MiB")
    table = Table(box=None, pad_edge=False)
    table.add_column(name, no_wrap=True)
    for heading in ("all", *(_SHORT.get(kind, kind.value) for kind in kinds)):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    for phase, sizes in estimate.phases.items():
        total = estimate.overhead + sum(sizes.values())
        cells = [f"{size / unit:.2f}" for size in (total, *(sizes[kind] for kind in kinds))]
        mark = " ←" if phase == estimate.phase else ""
        table.add_row(phase, *cells, _bar(total - sizes[MemoryKind.ALLOCATOR], total, estimate.peak) + mark)
    return table


def _bar(used: int, held: int, peak: int) -> str:
    """What is used as a solid bar, what the allocator only holds as a pale one behind it."""
    solid = max(1, round(_BAR * used / peak))
    return "█" * solid + "░" * (round(_BAR * held / peak) - solid)


_SHORT = {
    MemoryKind.GRADIENTS: "grads",
    MemoryKind.OPTIMIZER_STATE: "state",
    MemoryKind.ACTIVATIONS: "activ.",
    MemoryKind.TEMPORARY: "temp",
    MemoryKind.ALLOCATOR: "held",
}


def _verdict(estimate: Estimate) -> str:
    low, high = (format_bytes(size) for size in estimate.error_band)
    band = f"Measured runs say: between {low} and {high}."
    if estimate.device.memory is None:
        return band
    there = f"{estimate.device.title} has {format_bytes(estimate.device.memory)}"
    if estimate.fits:
        return f"{band} It fits: {there}."
    if not estimate.fits_host:
        return f"{band} It does not fit the machine around the card."
    if estimate.peak <= estimate.device.memory:
        return f"{band} It may not fit: {there}."
    return f"{band} It does not fit: {there}, {format_bytes(estimate.peak - estimate.device.memory)} too little."


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
    console.print(f"\nThe plain way  {baseline_line(plan)}", markup=False)
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
    console = Console(file=page, width=_WIDTH, no_color=True, soft_wrap=True)
    show_plan(plan, console)
    for note in plan.notes:  # the command line has said them before
        console.print(f"\n{note}", markup=False)
    return page.getvalue()


def verdict(plan: Plan) -> str:
    """The plan in two sentences."""
    chosen = plan.chosen
    if not plan.fits:
        return f"It does not fit {plan.budget}. The closest is {chosen.title}: {_cost(chosen)}."
    return f"It fits {plan.budget}: {chosen.title}\n{_cost(chosen)}; result: {_effect(chosen)}."


def baseline_line(plan: Plan) -> str:
    """What the plain way takes and where it goes."""
    estimate = plan.baseline.estimate
    kinds = sorted(estimate.phases[estimate.phase].items(), key=lambda item: -item[1])
    shares = [f"{kind.value} {format_bytes(size)}" for kind, size in kinds if size > estimate.peak / 50]
    overhead = "the process itself" if estimate.device.kind == "cpu" else "the card's own"
    where = ", ".join([*shares, f"{overhead} {format_bytes(estimate.overhead)}"])
    fits = "fits" if plan.baseline.keeps_to(plan.budget) else "does not fit"
    return f"{_cost(plan.baseline)} ({where}): {fits}"


def sections(plan: Plan) -> Iterator[tuple[str, list[str]]]:
    """Headings and their lines."""
    if plan.reasons:
        yield "Why", list(plan.reasons)
    if plan.suggestions:
        yield "Ways out", list(plan.suggestions)
    if plan.advice:
        yield "Shorter texts, if you want them (--max-length)", list(plan.advice)
    if plan.rejected:
        yield "Not taken", list(plan.rejected)


def plan_as_html(plan: Plan) -> str:
    """For a notebook: plain tags that take the page's own colours."""
    parts = [f"<p><b>{escape(verdict(plan)).replace(chr(10), '<br>')}</b></p>"]
    parts.append(f"<p>The plain way: {escape(baseline_line(plan))}</p>")
    parts += [f"<p>{escape(note)}</p>" for note in plan.notes]
    for heading, lines in sections(plan):
        items = "".join(f"<li>{escape(line)}</li>" for line in lines)
        parts.append(f"<details{' open' if heading == 'Why' else ''}><summary>{escape(heading)}</summary>")
        parts.append(f"<ul>{items}</ul></details>")
    rows = [_row(option) for option in (plan.chosen, *plan.alternatives, plan.baseline)]
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
    held = option.estimate.phases[option.estimate.phase][MemoryKind.ALLOCATOR]
    aside = f", {format_bytes(held)} of it held by the allocator" if held > option.peak / 50 else ""
    time = f"about {format_seconds(option.seconds_per_epoch)} an epoch"
    host = f", {format_bytes(option.estimate.host)} in the machine's own memory" if option.estimate.host else ""
    return f"peak {format_bytes(option.peak)} in {option.estimate.phase}{aside}{host}, {time}"


def _effect(option: Option) -> str:
    return f"{option.result.value} ({_EFFECT[option.result.value]})"
