"""Sections of the report of a run: summary, setup, plan, memory and time, quality."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tightfit.engine.meter import OTHER
from tightfit.report.i18n.strings import Strings
from tightfit.runs.folder import RunView
from tightfit.runs.header import LengthStats
from tightfit.runs.record import DataSummary
from tightfit.simulation.estimate import PHASES
from tightfit.tasks import find_task
from tightfit.tasks.base import LOSS
from tightfit.units import format_bytes, format_count

Row = tuple[str, ...]


# Summary: the run in one sentence and four numbers; where it stopped and how to resume it.


_MAX_LABELS = 6


class Tile(NamedTuple):
    """One of the large numbers at the top."""

    title: str
    value: str
    below: str


def lead(view: RunView, strings: Strings) -> str:
    """What was trained, in one sentence."""
    data, task = view.data, find_task(view.job.task)
    labels = list(data.labels[:_MAX_LABELS]) if data else ["?"]
    if data and len(data.labels) > _MAX_LABELS:
        labels.append("…")
    return strings(
        "lead_random" if view.job.random_weights else "lead",
        model=view.model,
        rows=f"{data.train_rows:,}" if data else "?",
        data=view.job.data.rpartition("/")[2],
        learned=strings.of_task(task, task.learned, labels=strings.join(labels)),
    )


def tiles(view: RunView, strings: Strings) -> list[Tile]:
    """Quality, memory, time and parameters, as far as an unfinished run has them."""
    found, task = [], find_task(view.job.task)
    if task.best.key in view.metrics:
        below = strings("on_validation", rows=f"{view.data.validation_rows:,}") if view.data else ""
        found.append(Tile(strings.metric(task, task.best), f"{view.metrics[task.best.key]:.4f}", below))
    found += [_peak_tile(view, strings), _time_tile(view, strings)]
    if view.parameters:
        trained, total = (format_count(number) for number in view.parameters)
        found.append(Tile(strings("trained_parameters"), trained, strings("of_all", all=total)))
    return found


def _peak_tile(view: RunView, strings: Strings) -> Tile:
    measured, predicted = view.measured_peak, view.predicted_peak
    if measured and predicted:
        below = strings("predicted_as", size=format_bytes(predicted), error=f"{predicted / measured - 1:+.1%}")
        return Tile(strings("peak"), format_bytes(measured), below)
    if measured:
        return Tile(strings("peak"), format_bytes(measured), strings("not_predicted"))
    return Tile(strings("peak_predicted"), format_bytes(predicted) if predicted else "–", strings("not_measured"))


def _time_tile(view: RunView, strings: Strings) -> Tile:
    if view.run is None:
        below = strings("of_steps", steps=f"{view.steps:,}") if view.steps else ""
        return Tile(strings("steps"), f"{view.last_step:,}", below)
    per_step = view.run.measured.seconds_per_step
    below = strings("time_per_step", time=strings.seconds(per_step)) if per_step else ""
    return Tile(strings("time"), strings.seconds(view.run.measured.seconds), below)


class Unfinished(NamedTuple):
    """Where a run stopped and why, and the command that resumes or restarts it."""

    about: str
    heading: str
    command: str


def unfinished(view: RunView, strings: Strings) -> Unfinished | None:
    """None for a finished run."""
    if view.run:
        return None
    steps, resumable = f"{view.steps:,}" if view.steps else "?", view.checkpoint is not None
    where = strings("stopped_at", step=f"{view.last_step:,}", steps=steps) if resumable else strings("no_checkpoint")
    attempts = view.header.attempts if view.header else []
    error = attempts[-1].error if attempts else None
    reason = strings("stop_reason", reason=error) if error else strings("no_stop_reason")
    about = strings.paragraph([where, reason])
    return Unfinished(about, strings("resume" if resumable else "restart"), view.resume_command)


def resumed(view: RunView, strings: Strings) -> str | None:
    """All starts of the run; None if there was only one."""
    if view.attempts < 2:
        return None
    starts = [strings("started_from", when=_date_and_time(when), step=f"{step:,}") for when, step in view.starts]
    return strings("resumed", times=view.attempts, starts=strings.join(starts) or "–")


def _date_and_time(timestamp: str) -> str:
    return timestamp.replace("T", " ").partition("+")[0]


# Setup: the model, the data, the text lengths and the hyperparameters.


def model_and_data(view: RunView, strings: Strings) -> list[Row]:
    """The model, the data and the number of parameters."""
    job, data, parameters = view.job, view.data, view.parameters
    model = strings("model_random_weights", model=job.model) if job.random_weights else job.model
    rows: list[Row] = [(strings("model"), model), (strings("task"), job.task), (strings("data"), job.data)]
    if data:
        rows.append(("", strings("rows", train=f"{data.train_rows:,}", validation=f"{data.validation_rows:,}")))
        rows.append(("", _columns(data, strings)))
    if data and data.labels:
        rows.append((strings("labels"), strings.join(data.labels)))
    if parameters and parameters[1]:
        rows.append((strings("parameters"), _parameters(*parameters, strings)))
    return rows


def _columns(data: DataSummary, strings: Strings) -> str:
    text, label = (" + ".join(names) for names in (data.text_columns, data.label_columns))
    return strings("columns", text=text, label=label) if label else strings("text_columns", text=text)


def _parameters(trained: int, total: int, strings: Strings) -> str:
    share = f"{trained / total:.1%}"
    return strings("parameters_of", trained=format_count(trained), all=format_count(total), share=share)


def about_lengths(lengths: LengthStats, strings: Strings) -> str:
    """What padding and truncation cost."""
    computed, baseline = f"{lengths.padding_factor:.2f}", f"{lengths.padding_factor_unsorted:.2f}"
    padding = strings("padding_cost", computed=computed, baseline=baseline)
    return strings.paragraph([padding, _truncation(lengths, strings)])


def _truncation(lengths: LengthStats, strings: Strings) -> str:
    if not lengths.truncated_rows:
        return strings("no_truncation", limit=lengths.limit)
    share = f"{lengths.truncated_rows / sum(lengths.rows):.1%}"
    sentence = strings("truncation_cost", rows=f"{lengths.truncated_rows:,}", share=share, limit=lengths.limit)
    if lengths.truncated_tokens is None or lengths.tokens is None:
        return sentence + strings("full_stop")
    dropped = lengths.truncated_tokens / (lengths.tokens + lengths.truncated_tokens)
    return sentence + strings("truncated_tokens", tokens=f"{lengths.truncated_tokens:,}", share=f"{dropped:.1%}")


def setup(view: RunView, strings: Strings) -> list[Row]:
    """The recipe, the hyperparameters, the device and the budget."""
    job, budget = view.job, view.header.budget_bytes if view.header else None
    rows: list[Row] = [
        (strings("recipe"), " ".join(view.recipe) or strings("baseline")),
        (strings("effect"), strings.result(view.result)),
        (strings("batch"), strings("batch_rows", rows=job.batch_size)),
        (strings("max_length"), strings("tokens_count", count=view.max_length)),
        (strings("hyperparameters"), _hyperparameters(view, strings)),
        (strings("seed"), str(job.seed)),
        (strings("device"), strings.device(view.device or "–")),
    ]
    return [*rows, (strings("budget"), format_bytes(budget))] if budget else rows


def _hyperparameters(view: RunView, strings: Strings) -> str:
    job = view.job
    return strings(
        "hyperparameters_are",
        epochs=f"{job.epochs:g}",
        steps=f"{view.steps:,}" if view.steps else "?",
        rate=f"{job.learning_rate:g}",
        decay=f"{job.weight_decay:g}",
        clip=f"{job.max_grad_norm:g}",
    )


# Plan: why this recipe, the alternatives, and what was rejected.


def plan_summary(view: RunView, strings: Strings) -> list[str]:
    """Whether the recipe was planned, for which budget, and what the baseline would need."""
    plan = _plan(view)
    if plan is None:
        return [strings("plan_given") if view.recipe else strings("plan_none")]
    made = strings("plan_made", budget=format_bytes(plan["budget_bytes"]), device=strings.device(plan["device"]))
    baseline = plan["baseline"]
    time = strings.seconds(baseline["seconds_per_epoch"])
    return [made, strings("plan_baseline", peak=format_bytes(baseline["peak_bytes"]), time=time)]


def strategies(view: RunView, strings: Strings) -> list[Row]:
    """Each strategy of the recipe and what it does."""
    return [(spec, strings.strategy(spec.partition(":")[0])) for spec in view.recipe]


def reasons(view: RunView, strings: Strings) -> list[str]:
    """The plan's reason for each strategy; empty if the recipe was not planned."""
    plan = _plan(view)
    if plan is None:
        return []
    return [_reason(reason, plan["seconds_per_epoch"], strings) for reason in plan.get("reason_details", [])]


def _reason(reason: dict[str, Any], seconds: float, strings: Strings) -> str:
    spec, without = reason["strategy"], reason["without"]
    kinds = strings("reason_and").join(strings.kind(kind) for kind in reason["kinds"])
    share = strings("reason_share", kinds=kinds, share=f"{reason['share']:.0%}") if kinds else ""
    cost = ""
    if without:
        longer = without["seconds_per_epoch"] - seconds
        key = "reason_slower" if longer > 0 else "reason_faster"
        cost = strings(key, peak=format_bytes(without["peak_bytes"]), time=strings.seconds(abs(longer)))
    return strings("reason", spec=spec, share=share, summary=strings.strategy(spec.partition(":")[0]), without=cost)


def alternatives(view: RunView, strings: Strings) -> list[Row]:
    """Recipe, peak, time per epoch and result: of the chosen recipe, the alternatives and the baseline."""
    plan = _plan(view)
    if plan is None:
        return []
    recipe, *others = _option(plan, strings)
    chosen = (strings("chosen", recipe=recipe), *others)
    return [chosen, *(_option(option, strings) for option in (*plan["alternatives"], plan["baseline"]))]


def _option(option: dict[str, Any], strings: Strings) -> Row:
    recipe = " ".join(option["recipe"]) or strings("baseline")
    time = strings.seconds(option["seconds_per_epoch"])
    return recipe, format_bytes(option["peak_bytes"]), time, strings.comparison(option["result"])


def rejected(view: RunView) -> list[str]:
    """The rejected strategies and why, as the planner wrote them (in English)."""
    plan = _plan(view)
    return list(plan["rejected"]) if plan else []


def _plan(view: RunView) -> dict[str, Any] | None:
    return view.header.plan if view.header else None


# Memory by phase and time, predicted and measured; the largest tensors.


_PHASE_ORDER = (*PHASES, OTHER)


class PhaseRow(NamedTuple):
    """A row of the table of phases."""

    name: str
    predicted: str
    measured: str
    error: str
    is_peak: bool


def phases(view: RunView, strings: Strings) -> list[PhaseRow]:
    """Every phase that was predicted or measured, in the order of a training run."""
    predicted, measured = predicted_phases(view), measured_phases(view)
    names = sorted({*predicted, *measured}, key=lambda name: (_phase_order(name), name))
    peaks = measured or predicted
    return [
        PhaseRow(
            strings.phase(name),
            format_bytes(predicted[name]) if name in predicted else "–",
            format_bytes(measured[name]) if name in measured else "–",
            f"{predicted[name] / measured[name] - 1:+.1%}" if measured.get(name) and name in predicted else "–",
            peaks.get(name) == max(peaks.values()),
        )
        for name in names
    ]


def _phase_order(name: str) -> int:
    return _PHASE_ORDER.index(name) if name in _PHASE_ORDER else len(_PHASE_ORDER)


def predicted_phases(view: RunView) -> Mapping[str, int]:
    """Predicted bytes of each phase, overhead included."""
    if view.run and view.run.predicted.phases:
        return view.run.predicted.phases
    estimate = view.estimate
    if estimate is None:
        return {}
    return {name: estimate["overhead_bytes"] + sum(kinds.values()) for name, kinds in estimate["phases"].items()}


def measured_phases(view: RunView) -> Mapping[str, int]:
    """Measured bytes of each phase; empty for an unfinished run."""
    return view.run.measured.phases if view.run else {}


def about_peak(view: RunView, strings: Strings) -> str | None:
    """The predicted peak, its phase, the batch it is for, and its error band; None without a prediction."""
    estimate = view.estimate
    if estimate is None:
        return None
    low, high = (format_bytes(size) for size in estimate["error_band"])
    peak, phase = format_bytes(estimate["peak_bytes"]), strings.phase(estimate["phase"])
    return strings("peak_is", peak=peak, phase=phase, worst=strings.worst(estimate["worst"]), low=low, high=high)


class TensorRow(NamedTuple):
    """A row of the table of tensors."""

    owner: str
    kind: str
    shape: str
    each: str
    total: str


def largest_tensors(view: RunView, strings: Strings) -> list[TensorRow]:
    """The tensors that are alive at the peak, largest total first."""
    groups = view.header.largest_tensors if view.header else []
    return [
        TensorRow(
            strings("owner_unknown") if group.owner is None else group.owner or strings("owner_model"),
            strings.kind(group.kind),
            " × ".join(map(str, group.shape)) if group.shape else strings("unknown"),
            f"{group.count} × {format_bytes(group.bytes)}" if group.count > 1 else format_bytes(group.bytes),
            format_bytes(group.count * group.bytes),
        )
        for group in groups
    ]


def times(view: RunView, strings: Strings) -> list[Row]:
    """What was timed, measured and predicted."""
    per_step = view.header.seconds_per_step if view.header else None
    run = view.run
    if run is None:
        return [(strings("step_time"), "–", strings.seconds(per_step))] if per_step else []
    per_step = run.predicted.seconds_per_step or per_step
    rows: list[Row] = [(strings("total_time"), strings.seconds(run.measured.seconds), "–")]
    if run.measured.seconds_per_step:
        predicted = strings.seconds(per_step) if per_step else "–"
        rows.append((strings("step_time"), strings.seconds(run.measured.seconds_per_step), predicted))
    if run.measured.epochs and len(run.measured.epochs) > 1:
        rows.append((strings("epoch_times"), strings.join(map(strings.seconds, run.measured.epochs)), "–"))
    return rows


# Quality: the scores of every evaluation, and which weights were saved.


_NOT_SCORES = ("eval_runtime", "eval_samples_per_second", "eval_steps_per_second")


def score_names(view: RunView, strings: Strings) -> dict[str, str]:
    """The keys and names of the scores that were measured, those of the task first."""
    task = find_task(view.job.task)
    found = dict.fromkeys(key for entry in view.evaluations for key in entry if key.startswith("eval_"))
    names = {metric.key: strings.metric(task, metric) for metric in (*task.metrics, LOSS) if metric.key in found}
    others = [key for key in found if key not in (*names, *_NOT_SCORES)]
    return names | {key: key.removeprefix("eval_") for key in others}


def score_table(view: RunView, strings: Strings) -> tuple[list[str], list[tuple[bool, list[str]]]]:
    """Headings, and for each evaluation whether its weights were saved, and its scores."""
    names, kept = score_names(view, strings), view.metrics.get("epoch") if view.run else None
    rows = []
    for entry in view.evaluations:
        cells = [_number(entry.get("epoch"), ".2f"), _number(entry.get("step"), ".0f")]
        rows.append((entry.get("epoch") == kept, [*cells, *(_number(entry.get(key), ".4f") for key in names)]))
    return list(names.values()), rows


def kept_epoch(view: RunView, strings: Strings) -> str | None:
    """Which epoch's weights were saved; None if there was only one evaluation."""
    if view.run is None or len(view.evaluations) < 2 or "epoch" not in view.metrics:
        return None
    task = find_task(view.job.task)
    return strings("kept_epoch", metric=strings.metric(task, task.best), epoch=f"{view.metrics['epoch']:g}")


# Use: how to predict with the model.


class Usage(NamedTuple):
    """A command, and Python code, that predict with the model."""

    command: str
    code: str


def usage(view: RunView, strings: Strings) -> Usage:
    """With an example text, or two for a model that was trained on pairs."""
    task = find_task(view.job.task)
    texts = [strings.of_task(task, task.example)]
    if view.data and len(view.data.text_columns) == 2:
        texts.append(strings("second_text"))
    given = " ".join(f'"{text}"' for text in texts)
    code = f'pipe = pipeline("{task.pipeline}", "{view.folder}")\n{task.pipeline_call(texts)}'
    return Usage(f"tightfit predict {view.folder} {given}", f"from transformers import pipeline\n\n{code}")


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else f"{value:{form}}"
