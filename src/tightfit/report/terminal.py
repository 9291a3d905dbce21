"""Results as text for a terminal: runs, estimates, plans, strategies, tasks, evaluations and predictions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tightfit.data.columns import ColumnNames
from tightfit.planning.plan import Option, Plan
from tightfit.report.i18n.strings import Strings
from tightfit.runs.record import Run
from tightfit.simulation.estimate import Estimate
from tightfit.strategies import STRATEGIES
from tightfit.strategies.base import REQUIRED, MemoryKind, Result
from tightfit.tasks import TASKS, find_task
from tightfit.tasks.base import LOSS, Prediction, Task
from tightfit.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from tightfit.inference import Evaluation

_BAR = 12
_STRINGS = Strings("en")


# Runs.


def show_run(run: Run, console: Console) -> None:
    """What was trained, its scores, its time, and its memory by phase."""
    trained = f"{format_count(run.trainable_parameters)} of {format_count(run.parameters)} parameters"
    console.print(f"\n{run.folder}: {trained} trained in {run.steps} steps", markup=False, style="bold")
    console.print(f"recipe    {' '.join(run.recipe) or 'baseline'} (result: {run.result})", markup=False)
    scores = format_scores(find_task(run.job.task), run.metrics)
    console.print(f"quality   {scores} on {run.data.validation_rows:,} validation rows", markup=False)
    console.print(f"time      {format_seconds(run.measured.seconds)}{_step_time(run)}")
    predicted = f", predicted {format_bytes(run.predicted.peak_bytes)}" if run.predicted.peak_bytes else ""
    console.print(f"memory    peak {format_bytes(run.measured.peak_bytes)} on {run.device}{predicted}")
    console.print(_phases(run))


def format_scores(task: Task, metrics: Mapping[str, float]) -> str:
    """The metrics of a task in one line, the loss last."""
    return ", ".join(f"{metric.title} {value:.4f}" for metric, value in task.measured(metrics))


def _step_time(run: Run) -> str:
    measured, predicted = run.measured.seconds_per_step, run.predicted.seconds_per_step
    if not measured:
        return ""
    return f", {format_seconds(measured)} per step" + (f" (predicted {format_seconds(predicted)})" if predicted else "")


def _phases(run: Run) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("  phase", "measured", "predicted", "", ""):
        table.add_column(heading, justify="right" if heading in ("measured", "predicted") else "left")
    predicted = run.predicted.phases or {}
    for phase, size in run.measured.phases.items():
        bar = Text("█" * max(1, round(_BAR * size / run.measured.peak_bytes)))
        mark = "← peak" if size == run.measured.peak_bytes else ""
        before = format_bytes(predicted[phase]) if phase in predicted else "–"
        table.add_row(f"  {phase}", format_bytes(size), before, bar, mark)
    return table


# Estimates.


_SHORT_KINDS = {
    MemoryKind.GRADIENTS: "grads",
    MemoryKind.OPTIMIZER_STATE: "state",
    MemoryKind.ACTIVATIONS: "activ.",
    MemoryKind.TEMPORARY: "temp",
    MemoryKind.ALLOCATOR: "cache",
}


def show_estimate(estimate: Estimate, console: Console) -> None:
    """Memory by phase and kind with a bar for each phase, and whether it fits the device."""
    trained = f"{format_count(estimate.trainable_parameters)} of {format_count(estimate.parameters)} parameters trained"
    console.print(
        f"peak {format_bytes(estimate.peak)} in {estimate.phase} on {estimate.device.label}; {trained}", style="bold"
    )
    console.print(_phases_and_kinds(estimate))
    overhead = f"{format_bytes(estimate.overhead)} of each phase is {_overhead_name(estimate)}"
    console.print(f"{overhead}; {estimate.worst}.", markup=False)
    for note in estimate.notes:
        console.print(note, markup=False)
    if estimate.host:
        console.print(_host_memory(estimate), markup=False)
    console.print(_fit_verdict(estimate), markup=False)


def _overhead_name(estimate: Estimate) -> str:
    return _STRINGS.kind("process" if estimate.device.kind == "cpu" else "context")


def _phases_and_kinds(estimate: Estimate) -> Table:
    kinds = [
        kind
        for kind in MemoryKind
        if max(sizes.get(kind, 0) for sizes in estimate.phases.values()) > estimate.peak / 200
    ]
    unit, name = (1 << 30, "GiB") if estimate.peak >= 1 << 30 else (1 << 20, "MiB")
    table = Table(box=None, pad_edge=False)
    table.add_column(name, no_wrap=True)
    for heading in ("total", *(_SHORT_KINDS.get(kind, kind.value) for kind in kinds)):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    for phase, sizes in estimate.phases.items():
        total = estimate.overhead + sum(sizes.values())
        cells = [f"{size / unit:.2f}" for size in (total, *(sizes[kind] for kind in kinds))]
        mark = " ←" if phase == estimate.phase else ""
        table.add_row(phase, *cells, _bar(total - sizes[MemoryKind.ALLOCATOR], total, estimate.peak) + mark)
    return table


def _bar(used: int, reserved: int, peak: int) -> str:
    """Used memory as a solid bar, the rest of what the allocator has reserved as a pale one behind it."""
    solid = max(1, round(_BAR * used / peak))
    return "█" * solid + "░" * (round(_BAR * reserved / peak) - solid)


def _host_memory(estimate: Estimate) -> str:
    available = estimate.device.host_bytes
    used = f"Host memory: {format_bytes(estimate.host)} for offloaded tensors"
    if available is None:
        return f"{used}."
    return f"{used} of {format_bytes(available)}: {'it fits' if estimate.fits_host else 'it does not fit'}."


def _fit_verdict(estimate: Estimate) -> str:
    low, high = (format_bytes(size) for size in estimate.error_band)
    band = f"Given the error of measured runs, expect {low} to {high}."
    if estimate.device.total_bytes is None:
        return band
    capacity = f"{estimate.device.label} has {format_bytes(estimate.device.total_bytes)}"
    if estimate.fits:
        return f"{band} It fits: {capacity}."
    if not estimate.fits_host:
        return f"{band} It does not fit: there is too little host memory."
    if estimate.peak <= estimate.device.total_bytes:
        return f"{band} It may not fit: {capacity}."
    return (
        f"{band} It does not fit: {capacity}, {format_bytes(estimate.peak - estimate.device.total_bytes)} too little."
    )


# Plans, also as HTML for a notebook.


_WIDTH = 100
_HEADINGS = ("peak", "time/epoch", "result", "recipe")


def show_plan(plan: Plan, console: Console) -> None:
    """The chosen recipe and why, what the baseline needs, what was rejected, and the alternatives."""
    console.print(verdict(plan), style="bold", markup=False)
    console.print(f"\n{baseline_line(plan)}", markup=False)
    for heading, lines in sections(plan):
        console.print(f"\n{heading}", style="bold", markup=False)
        for line in lines:
            console.print(f"  {line}", markup=False)
    if plan.alternatives:
        console.print("\nAlternatives that fit", style="bold")
        for line in (*_same_before_close(plan), *_alternatives(plan)):
            console.print(f"  {line}", markup=False)


def plan_as_text(plan: Plan) -> str:
    """The plan and its notes without colours."""
    page = StringIO()
    console = Console(file=page, width=_WIDTH, no_color=True, soft_wrap=True)
    show_plan(plan, console)
    for note in plan.notes:  # the command line logs them before it prints the plan
        console.print(f"\n{note}", markup=False)
    return page.getvalue()


def plan_as_html(plan: Plan) -> str:
    """The plan for a notebook, in tags without styles of their own."""
    parts = [f"<p><b>{escape(verdict(plan)).replace(chr(10), '<br>')}</b></p>"]
    parts.append(f"<p>{escape(baseline_line(plan))}</p>")
    parts += [f"<p>{escape(note)}</p>" for note in plan.notes]
    for heading, lines in sections(plan):
        items = "".join(f"<li>{escape(line)}</li>" for line in lines)
        parts.append(f"<details{' open' if heading == 'Why' else ''}><summary>{escape(heading)}</summary>")
        parts.append(f"<ul>{items}</ul></details>")
    rows = [_row(option) for option in (plan.chosen, *plan.alternatives, plan.baseline)]
    cells = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    parts.append(f"<table><tr>{''.join(f'<th>{name}</th>' for name in _HEADINGS)}</tr>{cells}</table>")
    return "".join(parts)


def verdict(plan: Plan) -> str:
    """Whether it fits, with which recipe, and what that recipe needs."""
    chosen = plan.chosen
    if not plan.fits:
        return f"Does not fit the budget of {plan.budget}. The closest is {chosen.title}\nPredicted {_cost(chosen)}."
    result = _STRINGS.result(chosen.result.value)
    return f"Fits the budget of {plan.budget} with {chosen.title}\nPredicted {_cost(chosen)}; result: {result}."


def baseline_line(plan: Plan) -> str:
    """Whether the baseline fits, and what it needs, by kind."""
    estimate = plan.baseline.estimate
    kinds = sorted(estimate.phases[estimate.phase].items(), key=lambda item: -item[1])
    shares = [f"{kind.value} {format_bytes(size)}" for kind, size in kinds if size > estimate.peak / 50]
    by_kind = ", ".join([*shares, f"{_overhead_name(estimate)} {format_bytes(estimate.overhead)}"])
    fits = "fits" if plan.baseline.fits(plan.budget) else "does not fit"
    return f"Baseline (no strategies): {fits}. Predicted {_cost(plan.baseline, f' ({by_kind})')}."


def sections(plan: Plan) -> Iterator[tuple[str, list[str]]]:
    """Headings and their lines."""
    if plan.reasons:
        yield "Why", list(plan.reasons)
    if plan.suggestions:
        yield "Options to make it fit", list(plan.suggestions)
    if plan.length_advice:
        yield "Optional: shorter texts (--max-length)", list(plan.length_advice)
    if plan.rejected:
        yield "Rejected", list(plan.rejected)


def _same_before_close(plan: Plan) -> Iterator[str]:
    """Why a `close` recipe was not chosen, although it may be faster."""
    if plan.chosen.result is Result.SAME and any(option.result is Result.CLOSE for option in plan.alternatives):
        yield "`close` recipes (not the same numbers, same quality) are used only if no `same` recipe fits."


def _alternatives(plan: Plan) -> list[str]:
    """Aligned columns, the recipe last: it may be longer than the terminal is wide."""
    rows = [_HEADINGS, *(_row(option) for option in plan.alternatives)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS) - 1)]
    return ["  ".join(cell.rjust(w) for cell, w in zip(row, [*widths, 0], strict=True)) for row in rows]


def _row(option: Option) -> tuple[str, str, str, str]:
    return format_bytes(option.peak), format_seconds(option.seconds_per_epoch), option.result.value, option.title


def _cost(option: Option, shares: str | None = None) -> str:
    shares = _allocator_share(option) if shares is None else shares
    host = f", plus {format_bytes(option.estimate.host)} of host memory" if option.estimate.host else ""
    time = f"about {format_seconds(option.seconds_per_epoch)} per epoch"
    return f"peak {format_bytes(option.peak)} in {option.estimate.phase}{shares}{host}; {time}"


def _allocator_share(option: Option) -> str:
    cached = option.estimate.phases[option.estimate.phase][MemoryKind.ALLOCATOR]
    return f" ({format_bytes(cached)} of it allocator cache)" if cached > option.peak / 50 else ""


# Strategies.


def show_strategies(console: Console) -> None:
    """The list of strategies, two lines each so that it fits any terminal."""
    for row in strategy_rows():
        settings = f"   settings: {row.settings}" if row.settings else ""
        console.print(f"[bold]{row.name}[/bold]   result: {row.result}   reduces: {row.frees or 'nothing'}{settings}")
        console.print(f"    {row.summary}", markup=False)
    console.print("\nUse a strategy with --use name:key=value,key=value; repeat --use to combine several.")
    results = [_STRINGS.result(result) for result in ("same", "close", "different")]
    console.print(f"Result, the effect on the trained model: {'; '.join(results)}.")
    console.print("Settings are explained in docs/strategies.md.")


@dataclass(frozen=True)
class StrategyRow:
    """One strategy as the terminal and the documentation show it."""

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


# Tasks.


def show_tasks(console: Console) -> None:
    """The list of tasks, three lines each so that it fits any terminal."""
    for row in task_rows():
        console.print(f"[bold]{row.name}[/bold]   {row.summary}")
        console.print(f"    columns: {row.columns}", markup=False)
        console.print(f"    metrics: {row.metrics}; the first one chooses the best checkpoint", markup=False)
    console.print("\nChoose a task with --task; --text and --label name its columns where they have other names.")


@dataclass(frozen=True)
class TaskRow:
    """One task as the terminal shows it."""

    name: str
    summary: str
    columns: str
    metrics: str
    pipeline: str


def task_rows() -> list[TaskRow]:
    """Every task, in the order of the list."""
    return [
        TaskRow(
            name=task.name,
            summary=task.summary,
            columns=_usual_columns(task.column_names),
            metrics=", ".join(metric.title for metric in (*task.metrics, LOSS)),
            pipeline=task.pipeline,
        )
        for task in TASKS.values()
    ]


def _usual_columns(names: ColumnNames) -> str:
    """A few of the names by which columns are found."""
    groups = sorted(names.text, key=len)  # single columns first
    texts = [" + ".join(group) for group in (*groups[:3], *groups[-1:])]
    return f"text ({', '.join(texts)}, …)" + (f", label ({', '.join(names.label[:3])}, …)" if names.label else "")


# Evaluations and predictions.


def show_evaluation(evaluation: Evaluation, console: Console) -> None:
    """The scores in one line."""
    scores = format_scores(find_task(evaluation.task), evaluation.metrics)
    console.print(f"{scores} on {evaluation.rows:,} rows", markup=False)


def show_predictions(texts: list[str], predictions: list[Prediction], console: Console) -> None:
    """The prediction and the text, one line per text."""
    for text, prediction in zip(texts, predictions, strict=True):
        console.print(f"{prediction}\t{text}", markup=False)
