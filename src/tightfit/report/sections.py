"""Sections of the report of a run: summary, setup, plan, memory and time, quality."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tightfit.engine.meter import OTHER
from tightfit.i18n import Render
from tightfit.job import Job
from tightfit.messages import Message, in_sequence, listed, msg, name, verbatim
from tightfit.report.names import kind_name, memory_name, phase_name, result_name
from tightfit.report.terminal import main_activities
from tightfit.runs.folder import RunView
from tightfit.runs.header import LengthStats
from tightfit.runs.record import DataSummary, Measured
from tightfit.simulation.estimate import PHASES
from tightfit.strategies import STRATEGIES
from tightfit.tasks import find_task
from tightfit.tasks.quality import LOSS
from tightfit.units import format_bytes, format_count, format_seconds

Row = tuple[str, ...]


# Summary: the run in one sentence and four numbers; where it stopped and how to resume it.


_MAX_LABELS = 6


class Tile(NamedTuple):
    """One of the large numbers at the top."""

    title: str
    value: str
    below: str


def lead(view: RunView) -> Message:
    """What was trained, in one sentence."""
    data, task = view.data, find_task(view.job.task)
    labels = list(data.labels[:_MAX_LABELS]) if data else ["?"]
    if data and len(data.labels) > _MAX_LABELS:
        labels.append("…")
    rows, file = f"{data.train_rows:,}" if data else "?", view.job.data.rpartition("/")[2]
    if view.job.random_weights:
        return msg(
            "{model} with random weights, trained on {rows} examples of {data}: "
            "for measuring memory and time, not for its predictions.",
            model=view.model,
            rows=rows,
            data=file,
        )
    return msg(
        "{model} fine-tuned on {rows} examples of {data}; {learned}.",
        model=view.model,
        rows=rows,
        data=file,
        learned=task.learned(labels),
    )


def tiles(view: RunView) -> list[Tile]:
    """Quality, memory, time and parameters, as far as an unfinished run has them."""
    found = [*_score_tile(view), _peak_tile(view), _time_tile(view)]
    if view.parameters:
        trained, total = (format_count(number) for number in view.parameters)
        found.append(Tile(msg("trained parameters"), trained, msg("of {all}", all=total)))
    return found


def _score_tile(view: RunView) -> list[Tile]:
    """The metric that chooses the best checkpoint, and what always giving the same answer gets."""
    scoring = view.scoring
    scores = [(metric, value) for metric, value in scoring.measured(view.metrics) if metric is scoring.best]
    if not scores or view.data is None:
        return []
    below = msg("on {rows:,} validation examples", rows=view.data.validation_rows)
    for _, constant in scoring.of_constant(view.metrics, scores):
        below = msg("{constant}: {score:.4f}; {rows}", constant=scoring.constant, score=constant, rows=below)
    return [Tile(metric.title, f"{value:.4f}", below) for metric, value in scores]


def _peak_tile(view: RunView) -> Tile:
    measured, predicted, memory = view.measured_peak, view.predicted_peak, memory_name(view.device)
    if not measured:
        size, below = format_bytes(predicted) if predicted else "–", msg("not measured: the run did not finish")
        return Tile(msg("peak {memory}, predicted", memory=memory), size, below)
    below = msg("no prediction")
    if predicted:
        error = predicted / measured - 1
        below = msg("predicted {size} ({error:+.1%})", size=format_bytes(predicted), error=error)
    return Tile(msg("peak {memory}", memory=memory), format_bytes(measured), below)


def _time_tile(view: RunView) -> Tile:
    if view.run is None:
        below = msg("of {steps:,}", steps=view.steps) if view.steps else ""
        return Tile(msg("steps"), f"{view.last_step:,}", below)
    per_step = view.run.measured.seconds_per_step
    below = msg("{time} per step", time=format_seconds(per_step)) if per_step else ""
    return Tile(msg("time"), format_seconds(view.run.measured.total_seconds or view.run.measured.seconds), below)


class Unfinished(NamedTuple):
    """Where a run stopped and why, and the command that resumes or restarts it."""

    about: Message
    heading: Message
    command: str


def unfinished(view: RunView) -> Unfinished | None:
    """None for a finished run."""
    if view.run:
        return None
    about = in_sequence(_last_checkpoint(view), _stop_reason(view))
    heading = msg("Resume it with:") if view.checkpoint else msg("Start it again with:")
    return Unfinished(about, heading, view.resume_command)


def _last_checkpoint(view: RunView) -> Message:
    if view.checkpoint is None:
        return msg("It has no checkpoint to resume from.")
    steps = f"{view.steps:,}" if view.steps else "?"
    return msg("Its last checkpoint is at step {step:,} of {steps}.", step=view.last_step, steps=steps)


def _stop_reason(view: RunView) -> Message:
    attempts = view.header.attempts if view.header else []
    error = attempts[-1].error if attempts else None
    if error:
        return msg("Reason: {reason}", reason=error)
    return msg(
        "No reason was recorded: it is still running, or the process was killed "
        "(kill -9, a power cut or the OOM killer)."
    )


def resumed(view: RunView) -> Message | None:
    """All starts of the run; None if there was only one."""
    if view.attempts < 2:
        return None
    starts = [msg("{when} from step {step:,}", when=_date_and_time(when), step=step) for when, step in view.starts]
    return msg(
        "It was started {times} times: {starts}. Measurements are from the last start.",
        times=view.attempts,
        starts=starts or "–",
    )


def _date_and_time(timestamp: str) -> str:
    return timestamp.replace("T", " ").partition("+")[0]


# Setup: the model, the data, the text lengths and the hyperparameters.


def model_and_data(view: RunView) -> list[Row]:
    """The model, the data and the number of parameters."""
    job, data, parameters = view.job, view.data, view.parameters
    model = msg("{model} (random weights)", model=job.model) if job.random_weights else job.model
    rows: list[Row] = [(msg("model"), model), (msg("task"), job.task), (msg("data"), job.data)]
    if data:
        counts = msg(
            "{train:,} training examples, {validation:,} validation examples",
            train=data.train_rows,
            validation=data.validation_rows,
        )
        rows += [("", counts), ("", _columns(data))]
    if data and data.labels:
        rows.append((msg("labels"), listed(data.labels)))
    if parameters and parameters[1]:
        rows.append((msg("parameters"), _parameters(*parameters)))
    return rows


def _columns(data: DataSummary) -> Message:
    text, label = (" + ".join(names) for names in (data.text_columns, data.label_columns))
    if not label:
        return msg("text from {columns}", columns=text)
    return msg("text from {text}, labels from {label}", text=text, label=label)


def _parameters(trained: int, total: int) -> Message:
    return msg(
        "{trained} of {all} trained ({share:.1%})",
        trained=format_count(trained),
        all=format_count(total),
        share=trained / total,
    )


def about_lengths(lengths: LengthStats) -> Message:
    """What padding and truncation cost."""
    padding = msg(
        "Padding: {computed:.2f} tokens are computed per token of text; the baseline (random order, each batch padded "
        "to its longest text) computes {baseline:.2f}.",
        computed=lengths.padding_factor,
        baseline=lengths.padding_factor_unsorted,
    )
    return in_sequence(padding, _truncation(lengths))


def _truncation(lengths: LengthStats) -> Message:
    if not lengths.truncated_rows:
        return msg("No text is longer than {limit} tokens: nothing is truncated.", limit=lengths.limit)
    truncated = msg(
        "{rows:,} texts ({share:.1%}) are longer than {limit} tokens and are truncated",
        rows=lengths.truncated_rows,
        share=lengths.truncated_rows / sum(lengths.rows),
        limit=lengths.limit,
    )
    if lengths.truncated_tokens is None or lengths.tokens is None:
        return msg("{sentence}.", sentence=truncated)
    return msg(
        "{truncated}, which drops {tokens:,} tokens ({share:.1%} of all).",
        truncated=truncated,
        tokens=lengths.truncated_tokens,
        share=lengths.truncated_tokens / (lengths.tokens + lengths.truncated_tokens),
    )


def setup(view: RunView) -> list[Row]:
    """The recipe, the hyperparameters, the device and the budget."""
    job, budget = view.job, view.header.budget_bytes if view.header else None
    rows: list[Row] = [
        (msg("recipe"), " ".join(view.recipe) or msg("baseline")),
        (msg("effect on the result"), result_name(view.result)),
        (msg("batch size"), msg("{rows} examples per optimizer step", rows=job.batch_size)),
        (msg("max length"), msg("{count} tokens", count=view.max_length)),
        (msg("hyperparameters"), _hyperparameters(view)),
        *((verbatim(option), value) for option, value in _other_settings(job)),
        (msg("seed"), str(job.seed)),
        (msg("device"), name(view.device or "–")),
    ]
    return [*rows, (msg("budget"), format_bytes(budget))] if budget else rows


_IN_OTHER_ROWS = {
    *("model", "data", "validation", "task", "text", "label", "batch_size", "max_length", "epochs", "max_steps"),
    *("learning_rate", "weight_decay", "max_grad_norm", "seed", "random_weights", "positive", "metric"),
}


def _other_settings(job: Job) -> Iterator[tuple[str, str]]:
    """The settings that the job gives, as on the command line."""
    for key, value in job.model_dump(exclude_defaults=True).items():
        if key not in _IN_OTHER_ROWS:
            yield f"--{key.replace('_', '-')}", " ".join(value) if isinstance(value, tuple) else str(value)


def _hyperparameters(view: RunView) -> Message:
    job = view.job
    return msg(
        "epochs {epochs:g}, steps {steps}; learning rate {rate:g}, weight decay {decay:g}, max grad norm {clip:g}",
        epochs=job.epochs,
        steps=f"{view.steps:,}" if view.steps else "?",
        rate=job.learning_rate,
        decay=job.weight_decay,
        clip=job.max_grad_norm,
    )


# Plan: why this recipe, the alternatives, and what was rejected.


def plan_summary(view: RunView) -> list[Message]:
    """Whether the recipe was planned, for which budget, and what the baseline would need."""
    plan = _plan(view)
    if plan is None:
        return [_unplanned(view)]
    baseline = plan["baseline"]
    return [
        msg(
            "The budget is {budget} on {device}. Of the recipes that fit it, the plan is one of those that change the "
            "result least, and of these the one with the shortest predicted time. Strategies that change no result and "
            "usually cost no time are always included.",
            budget=format_bytes(plan["budget_bytes"]),
            device=name(plan["device"]),
        ),
        msg(
            "The baseline, without any strategy, would need {peak}{time}.",
            peak=format_bytes(baseline["peak_bytes"]),
            time=_and_seconds(baseline["seconds_per_epoch"]),
        ),
    ]


def _and_seconds(seconds: float | None) -> Message | str:
    return "" if seconds is None else msg(" and {time} per epoch", time=format_seconds(seconds))


def _unplanned(view: RunView) -> Message:
    if not view.recipe:
        return msg(
            "No strategy was given, so this is the baseline; tightfit plan finds the fastest recipe for a budget."
        )
    return msg("The recipe was given, not planned; tightfit plan finds the fastest one for a budget. Its strategies:")


def strategies(view: RunView) -> list[Row]:
    """Each strategy of the recipe and what it does."""
    return [(spec, STRATEGIES[spec.partition(":")[0]].summary) for spec in view.recipe]


def reasons(view: RunView) -> list[Message]:
    """The plan's reason for each strategy; empty if the recipe was not planned."""
    plan = _plan(view)
    return list(plan["reasons"]) if plan else []


def alternatives(view: RunView) -> list[Row]:
    """Recipe, peak, time per epoch and result: of the chosen recipe, the alternatives and the baseline."""
    plan = _plan(view)
    if plan is None:
        return []
    recipe, *others = _option(plan)
    chosen = (msg("{recipe} (chosen)", recipe=recipe), *others)
    return [chosen, *(_option(option) for option in (*plan["alternatives"], plan["baseline"]))]


def _option(option: dict[str, Any]) -> Row:
    recipe = " ".join(option["recipe"]) or msg("baseline")
    seconds = option["seconds_per_epoch"]
    time = "–" if seconds is None else format_seconds(seconds)
    return recipe, format_bytes(option["peak_bytes"]), time, name(option["result"])


def rejected(view: RunView) -> list[Message]:
    """The rejected strategies and why."""
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


def phases(view: RunView) -> list[PhaseRow]:
    """Every phase that was predicted or measured, in the order of a training run."""
    predicted, measured = predicted_phases(view), measured_phases(view)
    names = sorted({*predicted, *measured}, key=lambda phase: (_phase_order(phase), phase))
    peaks = measured or predicted
    return [
        PhaseRow(
            phase_name(phase),
            format_bytes(predicted[phase]) if phase in predicted else "–",
            format_bytes(measured[phase]) if phase in measured else "–",
            f"{predicted[phase] / measured[phase] - 1:+.1%}" if measured.get(phase) and phase in predicted else "–",
            peaks.get(phase) == max(peaks.values()),
        )
        for phase in names
    ]


def _phase_order(phase: str) -> int:
    return _PHASE_ORDER.index(phase) if phase in _PHASE_ORDER else len(_PHASE_ORDER)


def predicted_phases(view: RunView) -> Mapping[str, int]:
    """Predicted bytes of each phase, overhead included."""
    if view.run and view.run.predicted.phases:
        return view.run.predicted.phases
    estimate = view.estimate
    if estimate is None:
        return {}
    return {phase: estimate["overhead_bytes"] + sum(kinds.values()) for phase, kinds in estimate["phases"].items()}


def measured_phases(view: RunView) -> Mapping[str, int]:
    """Measured bytes of each phase; empty for an unfinished run."""
    return view.run.measured.phases if view.run else {}


def about_peak(view: RunView) -> Message | None:
    """The predicted peak, its phase, the batch it is for, and its error band; None without a prediction."""
    estimate = view.estimate
    if estimate is None:
        return None
    peak = msg(
        "Predicted peak: {peak}, in {phase}; {worst}.",
        peak=format_bytes(estimate["peak_bytes"]),
        phase=phase_name(estimate["phase"]),
        worst=estimate["worst"],
    )
    expected = estimate.get("expected_range")  # runs of earlier versions have none
    return in_sequence(peak, expected) if expected else peak


class TensorRow(NamedTuple):
    """A row of the table of tensors."""

    owner: str
    kind: str
    shape: str
    each: str
    total: str


def largest_tensors(view: RunView) -> list[TensorRow]:
    """The tensors that are alive at the peak, largest total first."""
    groups = view.header.largest_tensors if view.header else []
    return [
        TensorRow(
            _owner(group.owner),
            kind_name(group.kind),
            " × ".join(map(str, group.shape)) if group.shape else "–",
            f"{group.count} × {format_bytes(group.bytes)}" if group.count > 1 else format_bytes(group.bytes),
            format_bytes(group.count * group.bytes),
        )
        for group in groups
    ]


def _owner(module: str | None) -> str:
    if module is None:
        return msg("no module (data, optimizer or library)")
    return module or msg("the model itself")


def times(view: RunView) -> list[Row]:
    """What was timed, measured and predicted."""
    per_step = view.header.seconds_per_step if view.header else None
    run = view.run
    if run is None:
        return [(msg("per step (median)"), "–", format_seconds(per_step))] if per_step else []
    per_step = run.predicted.seconds_per_step or per_step
    rows: list[Row] = [(total_label, format_seconds(total), "–") for total_label, total in _totals(run.measured)]
    if run.measured.seconds_per_step:
        predicted = format_seconds(per_step) if per_step else "–"
        rows.append((msg("per step (median)"), format_seconds(run.measured.seconds_per_step), predicted))
    if run.measured.epochs and len(run.measured.epochs) > 1:
        rows.append((msg("each epoch"), listed(map(format_seconds, run.measured.epochs)), "–"))
    return rows


def _totals(measured: Measured) -> Iterator[tuple[Message, float]]:
    """The seconds of the whole run, what it spent them on, and those of the steps."""
    if measured.total_seconds:
        yield msg("total"), measured.total_seconds
        yield from ((msg("– {what}", what=name(what)), seconds) for what, seconds in main_activities(measured))
    else:  # written by an older version
        yield msg("training, from the first step, with evaluation and saving"), measured.seconds


# Quality: the scores of every evaluation, and which weights were saved.


_NOT_SCORES = ("eval_runtime", "eval_samples_per_second", "eval_steps_per_second")


class ScoreRow(NamedTuple):
    """The scores of an evaluation, or of always giving the same answer."""

    is_kept: bool
    """Whether the weights of this epoch were saved."""
    cells: list[str]


def score_names(view: RunView) -> dict[str, str]:
    """The keys and names of the scores that were measured, those of the task first."""
    found = dict.fromkeys(key for entry in view.evaluations for key in entry if key.startswith("eval_"))
    names = {metric.key: metric.title for metric in view.scoring.metrics if metric.key in found}
    task = find_task(view.job.task)
    known = {key for metric in (*task.metrics, LOSS) for key in (metric.key, metric.constant_key)}
    others = [key for key in found if key not in (*known, *_NOT_SCORES)]
    return names | {key: key.removeprefix("eval_") for key in others}


def score_table(view: RunView) -> tuple[list[str], list[ScoreRow]]:
    """Headings, and the scores of each evaluation and of always giving the same answer."""
    names, kept = score_names(view), view.metrics.get("epoch") if view.run else None
    rows = []
    for entry in view.evaluations:
        cells = [_number(entry.get("epoch"), ".2f"), _number(entry.get("step"), ".0f")]
        cells += [_number(entry.get(key), ".4f") for key in names]
        rows.append(ScoreRow(entry.get("epoch") == kept, cells))
    return list(names.values()), rows


def constant_row(view: RunView) -> list[str]:
    """In the columns of the score table, what always giving the same answer gets; empty if that is unknown."""
    constant = {metric.key: value for metric, value in view.scoring.of_constant(view.metrics)}
    cells = [_number(constant.get(key), ".4f") for key in score_names(view)]
    return [view.scoring.constant, *cells] if constant else []


def kept_epoch(view: RunView) -> Message | None:
    """Which epoch's weights were saved; None if there was only one evaluation."""
    if view.run is None or len(view.evaluations) < 2 or "epoch" not in view.metrics:
        return None
    return msg(
        "The saved weights are those of the epoch with the best {metric}: epoch {epoch:g}.",
        metric=view.scoring.best.title,
        epoch=view.metrics["epoch"],
    )


# Use: how to predict with the model.


class Usage(NamedTuple):
    """A command, and Python code, that predict with the model."""

    command: str
    code: str


def usage(view: RunView, text: Render) -> Usage:
    """The command and Python code to predict an example text, or a pair of texts for a model trained on pairs."""
    texts = example_texts(view.job.task, view.data, text)
    given = " ".join(f'"{each}"' for each in texts)
    code = find_task(view.job.task).usage(str(view.folder), texts, view.max_length)
    return Usage(f"{shlex.join(['tightfit', 'predict', str(view.folder)])} {given}", code)


def example_texts(task: str, data: DataSummary | None, text: Render) -> list[str]:
    """What a user would give the model."""
    known = find_task(task)
    examples = [text(known.example), text(known.second_example)]
    return examples if data and len(data.text_columns) == 2 else examples[:1]


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else f"{value:{form}}"
