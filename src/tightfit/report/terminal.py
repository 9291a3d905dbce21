"""Results as text for a terminal: runs, estimates, plans, strategies, tasks, evaluations and predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tightfit.data.columns import ColumnNames
from tightfit.i18n import current_language, render
from tightfit.messages import Message, clauses, in_sequence, listed, msg, name
from tightfit.planning.plan import Option, Plan
from tightfit.report.names import in_a_line, kind_name, phase_name, result_name, scores_beside_constant
from tightfit.report.quality import show_quality
from tightfit.runs.record import Measured, Run
from tightfit.simulation.estimate import Estimate
from tightfit.strategies import STRATEGIES
from tightfit.strategies.base import REQUIRED, MemoryKind, Result
from tightfit.tasks import TASKS
from tightfit.tasks.base import Prediction
from tightfit.tasks.quality import LOSS
from tightfit.units import format_bytes, format_count, format_seconds, format_steps

if TYPE_CHECKING:
    from tightfit.inference import Evaluation

_BAR = 12
_SHORTEST = 0.1  # seconds; a shorter activity is not listed
_WIDTH = 100


def say(console: Console, message: Message, style: str | None = None) -> None:
    """Print a message in the language of the command line."""
    console.print(render(message), markup=False, style=style)


def _as_text(show: Callable[[Console], None]) -> str:
    """What is shown, without colours."""
    page = StringIO()
    show(Console(file=page, width=_WIDTH, no_color=True, soft_wrap=True))
    return page.getvalue().strip("\n")


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows of a table with every cell right-aligned; a Chinese character is two columns wide."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(_padded(cell, width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def _padded(cell: str, width: int) -> str:
    return " " * (width - cell_len(cell)) + cell


# Runs.


def run_as_text(run: Run) -> str:
    """The run as `train` prints it."""
    return _as_text(lambda console: show_run(run, console))


def show_run(run: Run, console: Console) -> None:
    """What was trained, its scores, its time, and its memory by phase."""
    trained, total = format_count(run.trainable_parameters), format_count(run.parameters)
    console.print()
    say(
        console,
        msg(
            "{folder}: {trained} of {all} parameters trained in {steps}",
            folder=run.folder,
            trained=trained,
            all=total,
            steps=format_steps(run.steps),
        ),
        style="bold",
    )
    recipe = " ".join(run.recipe) or msg("baseline")
    say(console, msg("recipe    {recipe} (result: {result})", recipe=recipe, result=name(run.result)))
    scores, rows = in_a_line(run.scoring, run.metrics), run.data.validation_rows
    say(console, msg("quality   {scores} on {rows:,} validation rows", scores=scores, rows=rows))
    for note in run.quality.notes if run.quality else []:
        console.print(f"          {render(note)}", markup=False, style="yellow")
    say(console, msg("time      {time}", time=listed([total_time(run.measured), *_step_time(run)])))
    say(console, msg("memory    {memory}", memory=listed(_peak(run))))
    console.print(_phases(run))


def _peak(run: Run) -> Iterator[Message]:
    peak, predicted = format_bytes(run.measured.peak_bytes), run.predicted.peak_bytes
    yield msg("peak {peak} on {device}", peak=peak, device=name(run.device))
    if predicted:
        yield msg("predicted {size}", size=format_bytes(predicted))


def total_time(measured: Measured) -> Message:
    """The seconds of the whole run, and what it spent them on."""
    if not measured.total_seconds:
        return format_seconds(measured.seconds)
    parts = [
        msg("{what} {time}", what=name(what), time=format_seconds(seconds))
        for what, seconds in main_activities(measured)
    ]
    return msg("{time} ({parts})", time=format_seconds(measured.total_seconds), parts=parts)


def main_activities(measured: Measured) -> list[tuple[str, float]]:
    """The activities that took some time, in their order."""
    return [(what, seconds) for what, seconds in (measured.activities or {}).items() if seconds >= _SHORTEST]


def _step_time(run: Run) -> Iterator[Message]:
    measured, predicted = run.measured.seconds_per_step, run.predicted.seconds_per_step
    if not measured:
        return
    per_step = msg("{time} per step", time=format_seconds(measured))
    if predicted:
        per_step = msg("{measured} (predicted {predicted})", measured=per_step, predicted=format_seconds(predicted))
    yield per_step


def _phases(run: Run) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(f"  {render(msg('phase'))}")
    for heading in (msg("measured"), msg("predicted")):
        table.add_column(render(heading), justify="right")
    table.add_column()
    table.add_column()
    predicted = run.predicted.phases or {}
    largest = max(run.measured.phases, key=run.measured.phases.__getitem__, default=None)  # the first, if several are
    for phase, size in run.measured.phases.items():
        bar = Text("█" * max(1, round(_BAR * size / (run.measured.peak_bytes or 1))))
        mark = render(msg("← peak")) if phase == largest else ""
        before = format_bytes(predicted[phase]) if phase in predicted else "–"
        table.add_row(f"  {render(phase_name(phase))}", format_bytes(size), before, bar, mark)
    return table


# Estimates.


_SHORT_KINDS = {
    MemoryKind.GRADIENTS: msg("grads"),
    MemoryKind.OPTIMIZER_STATE: msg("state"),
    MemoryKind.ACTIVATIONS: msg("activ."),
    MemoryKind.TEMPORARY: msg("temp"),
    MemoryKind.ALLOCATOR: msg("cache"),
}


def estimate_as_text(estimate: Estimate) -> str:
    """The estimate as the command line prints it."""
    return _as_text(lambda console: show_estimate(estimate, console))


def show_estimate(estimate: Estimate, console: Console) -> None:
    """Memory by phase and kind with a bar for each phase, and whether it fits the device."""
    summary = msg(
        "peak {peak} in {phase} on {device}; {trained} of {all} parameters trained",
        peak=format_bytes(estimate.peak),
        phase=phase_name(estimate.phase),
        device=estimate.device.label,
        trained=format_count(estimate.trainable_parameters),
        all=format_count(estimate.parameters),
    )
    say(console, summary, style="bold")
    console.print(_phases_and_kinds(estimate))
    size, overhead = format_bytes(estimate.overhead), _overhead_name(estimate)
    worst = estimate.worst
    say(console, msg("{size} of each phase is {overhead}; {worst}.", size=size, overhead=overhead, worst=worst))
    if estimate.libraries:
        say(console, _libraries(estimate))
    for note in estimate.notes:
        say(console, note)
    if estimate.host:
        say(console, _host_memory(estimate))
    say(console, _fit_verdict(estimate))


def _libraries(estimate: Estimate) -> Message:
    """What is in every phase beside the tensors, and how that is known."""
    parts = [
        msg("{what} {size} ({source})", what=each.name, size=format_bytes(each.size), source=each.source)
        for each in estimate.libraries
    ]
    return msg("CUDA libraries: {parts}.", parts=clauses(*parts))


def _overhead_name(estimate: Estimate) -> Message:
    return kind_name("process" if estimate.device.kind == "cpu" else "context")


def _phases_and_kinds(estimate: Estimate) -> Table:
    kinds = [
        kind
        for kind in MemoryKind
        if max(sizes.get(kind, 0) for sizes in estimate.phases.values()) > estimate.peak / 200
    ]
    unit, unit_name = (1 << 30, "GiB") if estimate.peak >= 1 << 30 else (1 << 20, "MiB")
    table = Table(box=None, pad_edge=False)
    table.add_column(unit_name, no_wrap=True)
    for heading in (msg("total"), *(_SHORT_KINDS.get(kind) or kind.label for kind in kinds)):
        table.add_column(render(heading), justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    for phase, sizes in estimate.phases.items():
        total = estimate.overhead + sum(sizes.values())
        cells = [f"{size / unit:.2f}" for size in (total, *(sizes[kind] for kind in kinds))]
        mark = " ←" if phase == estimate.phase else ""
        table.add_row(
            render(phase_name(phase)), *cells, _bar(total - sizes[MemoryKind.ALLOCATOR], total, estimate.peak) + mark
        )
    return table


def _bar(used: int, reserved: int, peak: int) -> str:
    """Used memory as a solid bar, the rest of what the allocator has reserved as a pale one behind it."""
    solid = max(1, round(_BAR * used / peak))
    return "█" * solid + "░" * (round(_BAR * reserved / peak) - solid)


def _host_memory(estimate: Estimate) -> Message:
    used, available = format_bytes(estimate.host), estimate.device.host_bytes
    if available is None:
        return msg("Host memory: {used} for offloaded tensors.", used=used)
    total = format_bytes(available)
    if estimate.fits_host:
        return msg("Host memory: {used} for offloaded tensors of {total}: it fits.", used=used, total=total)
    return msg("Host memory: {used} for offloaded tensors of {total}: it does not fit.", used=used, total=total)


def _fit_verdict(estimate: Estimate) -> Message:
    expected, total, device = estimate.expected_range, estimate.device.total_bytes, estimate.device.label
    return expected if total is None else in_sequence(expected, _fits(estimate, device, total))


def _fits(estimate: Estimate, device: str, total: int) -> Message:
    capacity = format_bytes(total)
    if estimate.fits:
        return msg("It fits: {device} has {capacity}.", device=device, capacity=capacity)
    if not estimate.fits_host:
        return msg("It does not fit: there is too little host memory.")
    if estimate.peak <= total:
        return msg("It may not fit: {device} has {capacity}.", device=device, capacity=capacity)
    return msg(
        "It does not fit: {device} has {capacity}, {missing} too little.",
        device=device,
        capacity=capacity,
        missing=format_bytes(estimate.peak - total),
    )


# Plans, also as HTML for a notebook.


_HEADINGS = (msg("peak"), msg("time/epoch"), msg("result"), msg("recipe"))
_WHY = msg("Why")


def show_plan(plan: Plan, console: Console) -> None:
    """The chosen recipe and why, what the baseline needs, what was rejected, and the alternatives."""
    for line in verdict(plan):
        say(console, line, style="bold")
    console.print()
    say(console, baseline_line(plan))
    for heading, lines in sections(plan):
        _show_section(console, heading, map(render, lines))
    if plan.alternatives:
        table = (*map(render, _same_before_close(plan)), *_alternatives(plan))
        _show_section(console, msg("Alternatives that fit (choose one with --take N)"), table)


def _show_section(console: Console, heading: Message, lines: Iterable[str]) -> None:
    console.print()
    say(console, heading, style="bold")
    for line in lines:
        console.print(f"  {line}", markup=False)


def plan_as_text(plan: Plan) -> str:
    """The plan and its notes without colours."""

    def show(console: Console) -> None:
        show_plan(plan, console)
        for note in plan.notes:  # the command line logs them before it prints the plan
            console.print()
            say(console, note)

    return _as_text(show)


def plan_as_html(plan: Plan) -> str:
    """The plan for a notebook, in tags without styles of their own."""
    parts = [f"<p><b>{'<br>'.join(map(_escaped, verdict(plan)))}</b></p>"]
    parts += [f"<p>{_escaped(line)}</p>" for line in (baseline_line(plan), *plan.notes)]
    for heading, lines in sections(plan):
        items = "".join(f"<li>{_escaped(line)}</li>" for line in lines)
        parts.append(f"<details{' open' if heading is _WHY else ''}><summary>{_escaped(heading)}</summary>")
        parts.append(f"<ul>{items}</ul></details>")
    rows = [_row(option) for option in (plan.chosen, *plan.alternatives, plan.baseline)]
    cells = "".join("<tr>" + "".join(f"<td>{_escaped(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    headings = "".join(f"<th>{_escaped(heading)}</th>" for heading in _HEADINGS)
    return "".join([*parts, f"<table><tr>{headings}</tr>{cells}</table>"])


def _escaped(text: str) -> str:
    return escape(render(text))


def verdict(plan: Plan) -> tuple[Message, Message]:
    """Whether it fits, with which recipe, and what that recipe needs."""
    chosen, what = plan.chosen, _budget_of(plan)
    if not plan.fits:
        return (
            msg("Does not fit {budget}. The closest is {recipe}", budget=what, recipe=chosen.title),
            msg("Predicted {cost}.", cost=_cost(chosen)),
        )
    return (
        msg("Fits {budget} with {recipe}", budget=what, recipe=chosen.title),
        msg("Predicted {cost}; result: {result}.", cost=_cost(chosen), result=result_name(chosen.result.value)),
    )


def _budget_of(plan: Plan) -> Message:
    """A plan without a budget says where the number comes from."""
    if plan.budget.is_auto and plan.budget.device.is_here:
        return msg("the {budget} (no --budget given)", budget=plan.budget.title)
    return msg("the budget of {budget}", budget=plan.budget.title)


def baseline_line(plan: Plan) -> Message:
    """Whether the baseline fits, and what it needs, by kind."""
    estimate = plan.baseline.estimate
    largest = sorted(estimate.phases[estimate.phase].items(), key=lambda item: -item[1])
    kinds = [(kind.label, size) for kind, size in largest if size > estimate.peak / 50]
    kinds.append((_overhead_name(estimate), estimate.overhead))
    shares = [msg("{kind} {size}", kind=kind, size=format_bytes(size)) for kind, size in kinds]
    cost = _cost(plan.baseline, msg(" ({shares})", shares=shares))
    if plan.baseline.fits(plan.budget):
        return msg("Baseline (no strategies): fits. Predicted {cost}.", cost=cost)
    return msg("Baseline (no strategies): does not fit. Predicted {cost}.", cost=cost)


def sections(plan: Plan) -> Iterator[tuple[Message, Sequence[Message]]]:
    """Headings and their lines."""
    if plan.reasons:
        yield _WHY, plan.reasons
    if plan.suggestions:
        yield msg("Options to make it fit"), plan.suggestions
    if plan.length_advice:
        yield msg("Optional: shorter texts (--max-length)"), plan.length_advice
    if plan.rejected:
        yield msg("Rejected"), plan.rejected


def _same_before_close(plan: Plan) -> Iterator[Message]:
    """Why a `close` recipe was not chosen, although it may be faster."""
    if plan.speedup is not None:
        yield msg(
            "A `close` recipe (different numbers, same quality) is {factor:.1f} × faster: --prefer speed",
            factor=plan.speedup,
        )
    elif plan.chosen.result is Result.SAME and any(option.result is Result.CLOSE for option in plan.alternatives):
        yield msg("`close` recipes (different numbers, same quality) are used only if no `same` recipe fits.")


def _alternatives(plan: Plan) -> list[str]:
    """Aligned columns, the recipe last: it may be longer than the terminal is wide."""
    rows = [["", *map(render, _HEADINGS)]]
    rows += [[f"{number}.", *map(render, _row(option))] for number, option in enumerate(plan.alternatives, 1)]
    numbers = aligned([row[:-1] for row in rows])
    return [f"{line}  {row[-1]}" for line, row in zip(numbers, rows, strict=True)]


def _row(option: Option) -> tuple[str, str, str, str]:
    seconds = option.seconds_per_epoch
    time = "–" if seconds is None else format_seconds(seconds)
    return format_bytes(option.peak), time, name(option.result.value), option.title


def _cost(option: Option, shares: Message | str | None = None) -> Message:
    host, seconds = format_bytes(option.estimate.host), option.seconds_per_epoch
    return msg(
        "peak {peak} in {phase}{shares}{host}{time}",
        peak=format_bytes(option.peak),
        phase=phase_name(option.estimate.phase),
        shares=_allocator_share(option) if shares is None else shares,
        host=msg(", plus {size} of host memory", size=host) if option.estimate.host else "",
        time="" if seconds is None else msg("; about {time} per epoch", time=format_seconds(seconds)),
    )


def _allocator_share(option: Option) -> Message | str:
    cached = option.estimate.phases[option.estimate.phase][MemoryKind.ALLOCATOR]
    if cached <= option.peak / 50:
        return ""
    return msg(" ({size} of it allocator cache)", size=format_bytes(cached))


# Strategies.


def show_strategies(console: Console) -> None:
    """The list of strategies, two lines each so that it fits any terminal."""
    for row in strategy_rows():
        console.print(Text.assemble((row.name, "bold"), f"   {render(_about(row))}"))
        console.print(f"    {render(row.summary)}", markup=False)
    console.print()
    say(console, msg("Use a strategy with --use name:key=value,key=value; repeat --use to combine several."))
    results = clauses(*(result_name(result.value) for result in Result))
    say(console, msg("Result, the effect on the trained model: {results}.", results=results))
    say(console, msg("Settings are explained in docs/strategies.md."))


def _about(row: StrategyRow) -> Message:
    """The effect of a strategy on the result, what it reduces, and its settings."""
    reduced = listed(map(kind_name, row.frees.split(", "))) if row.frees else msg("nothing")
    settings = msg("   settings: {settings}", settings=row.settings) if row.settings else ""
    return msg(
        "result: {result}   reduces: {kinds}{settings}", result=name(row.result), kinds=reduced, settings=settings
    )


@dataclass(frozen=True)
class StrategyRow:
    """One strategy as the terminal and the documentation show it."""

    name: str
    result: str
    frees: str
    summary: Message
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
    """The list of tasks, some lines each so that it fits any terminal."""
    for row in task_rows():
        console.print(Text.assemble((row.name, "bold"), f"   {render(row.summary)}"))
        columns = msg("columns: {columns}", columns=row.columns)
        metrics = msg(
            "metrics: {metrics}; the first one chooses the best checkpoint, or another with --metric: {names}",
            metrics=row.metrics,
            names=row.metric_names,
        )
        for line in (msg("reads: {data}", data=row.reads), columns, metrics, row.command):
            console.print(f"    {render(line)}", markup=False)
    console.print()
    say(console, msg("Choose a task with --task; --text and --label name its columns where they have other names."))


@dataclass(frozen=True)
class TaskRow:
    """One task as the terminal shows it."""

    name: str
    summary: Message
    reads: Message
    columns: Message
    metrics: Message
    metric_names: list[str]
    """As --metric takes them."""
    pipeline: str
    command: str


def task_rows() -> list[TaskRow]:
    """Every task, in the order of the list."""
    return [
        TaskRow(
            name=task.name,
            summary=task.summary,
            reads=task.reads,
            columns=_usual_columns(task.column_names),
            metrics=listed(metric.title for metric in (*task.metrics, LOSS)),
            metric_names=[metric.option for metric in (*task.metrics, LOSS)],
            pipeline=task.pipeline,
            command=task.command,
        )
        for task in TASKS.values()
    ]


def _usual_columns(names: ColumnNames) -> Message:
    """A few of the names by which columns are found; those in Chinese only for who reads it."""
    groups = sorted(names.text, key=len)  # single columns first
    shown = (*groups[:3], *(groups[-1:] if current_language() == "zh" else ()))
    texts = [" + ".join(group) for group in shown]
    if not names.label:
        return msg("text ({texts}, …)", texts=texts)
    apart = msg("text ({texts}, …), label ({labels}, …)", texts=texts, labels=names.label[:3])
    return msg("{columns}; or both in {whole}", columns=apart, whole=names.whole[0]) if names.whole else apart


# Evaluations and predictions.


def evaluation_as_text(evaluation: Evaluation) -> str:
    """The evaluation as the command line prints it."""
    return _as_text(lambda console: show_evaluation(evaluation, console))


def evaluation_as_html(evaluation: Evaluation) -> str:
    """The same for a notebook."""
    return f"<pre>{escape(evaluation_as_text(evaluation))}</pre>"


def show_evaluation(evaluation: Evaluation, console: Console) -> None:
    """The scores in one line; those of each label, the confusions and the worst mistakes."""
    scoring, metrics = evaluation.scoring, evaluation.metrics
    scores = scores_beside_constant(scoring, metrics, scoring.measured(metrics))
    say(console, msg("{scores} on {rows:,} rows", scores=scores, rows=evaluation.rows))
    if evaluation.quality:
        show_quality(evaluation.quality, scoring, console)


def show_predictions(texts: list[str], predictions: list[Prediction], console: Console) -> None:
    """The prediction and the text, one line per text."""
    for text, prediction in zip(texts, predictions, strict=True):
        console.print(f"{prediction}\t{text}", markup=False)
