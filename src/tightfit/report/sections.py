"""Cost: memory by moment, foretold beside measured; the largest tensors; time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tightfit.report.i18n import Strings
from tightfit.runs.folder import RunView
from tightfit.runs.header import Texts
from tightfit.units import format_bytes, format_count

_IN_ORDER = ("load", "features", "forward", "backward", "step", "evaluate", "save", "load-best", "between")


class Moment(NamedTuple):
    """A row of the table of moments."""

    name: str
    predicted: str
    measured: str
    error: str
    is_peak: bool


def foretold_moments(account: RunView) -> Mapping[str, int]:
    """Bytes, overhead included."""
    if account.run and account.run.predicted.phases:
        return account.run.predicted.phases
    estimate = account.estimate
    return (
        {name: estimate["overhead_bytes"] + sum(kinds.values()) for name, kinds in estimate["phases"].items()}
        if estimate
        else {}
    )


def measured_moments(account: RunView) -> Mapping[str, int]:
    """Bytes; nothing where the run did not finish."""
    return account.run.measured.phases if account.run else {}


def phases(account: RunView, strings: Strings) -> list[Moment]:
    """Every moment that was foretold or measured, in the order of a training."""
    predicted, measured = foretold_moments(account), measured_moments(account)
    names = sorted({*predicted, *measured}, key=lambda name: (_place(name), name))
    peaks = measured or predicted
    return [
        Moment(
            strings.phase(name),
            format_bytes(predicted[name]) if name in predicted else "–",
            format_bytes(measured[name]) if name in measured else "–",
            f"{predicted[name] / measured[name] - 1:+.1%}" if measured.get(name) and name in predicted else "–",
            peaks.get(name) == max(peaks.values()),
        )
        for name in names
    ]


def _place(name: str) -> int:
    return _IN_ORDER.index(name) if name in _IN_ORDER else len(_IN_ORDER)


def about_peak(account: RunView, strings: Strings) -> str | None:
    """The forecast in a sentence."""
    estimate = account.estimate
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
    together: str


def largest(account: RunView, strings: Strings) -> list[TensorRow]:
    """The most memory first."""
    tensors = account.beginning.largest if account.beginning else []
    return [
        TensorRow(
            strings("owner_unknown") if each.owner is None else each.owner or strings("owner_model"),
            strings.kind(each.kind),
            " × ".join(map(str, each.shape)) if each.shape else strings("unknown"),
            f"{each.count} × {format_bytes(each.bytes)}" if each.count > 1 else format_bytes(each.bytes),
            format_bytes(each.count * each.bytes),
        )
        for each in tensors
    ]


def times(account: RunView, strings: Strings) -> list[tuple[str, str, str]]:
    """What, measured, foretold."""
    pace = account.beginning.seconds_per_step if account.beginning else None
    run = account.run
    if run is None:
        return [(strings("step_time"), "–", strings.seconds(pace))] if pace else []
    pace = run.predicted.seconds_per_step or pace
    rows = [(strings("whole_time"), strings.seconds(run.measured.seconds), "–")]
    if run.measured.seconds_per_step:
        predicted = strings.seconds(pace) if pace else "–"
        rows.append((strings("step_time"), strings.seconds(run.measured.seconds_per_step), predicted))
    if run.measured.epochs and len(run.measured.epochs) > 1:
        rows.append((strings("epoch_times"), ", ".join(strings.seconds(each) for each in run.measured.epochs), "–"))
    return rows


# Facts: what was trained and how, as rows of a table; and how long the texts are.


Row = tuple[str, str]


def trained(account: RunView, strings: Strings) -> list[Row]:
    """The model, the data, the parameters."""
    job, data, parameters = account.job, account.data, account.parameters
    weights = f" ({strings('random_weights')})" if job.random_weights else ""
    rows = [(strings("model"), job.model + weights), (strings("task"), job.task), (strings("data"), job.data)]
    if data:
        rows.append(("", strings("rows", train=f"{data.train_rows:,}", validation=f"{data.validation_rows:,}")))
        rows.append(("", strings("columns", text=" + ".join(data.text_columns), label=data.label_column)))
        rows.append((strings("labels"), ", ".join(data.labels)))
    if parameters and parameters[1]:
        learn, every = parameters
        of = strings(
            "parameters_of", trained=format_count(learn), all=format_count(every), share=f"{learn / every:.1%}"
        )
        rows.append((strings("parameters"), of))
    return rows


def how(account: RunView, strings: Strings) -> list[Row]:
    """The recipe's numbers, in the words of the job."""
    job, steps = account.job, account.steps
    budget = account.beginning.budget_bytes if account.beginning else None
    rows = [
        (strings("recipe"), " ".join(account.recipe) or strings("plain")),
        (strings("effect"), strings.result(account.result)),
        (strings("batch"), strings("batch_rows", rows=job.batch_size)),
        (strings("text_limit"), strings("tokens_count", count=account.max_length)),
        (
            strings("schedule"),
            strings(
                "schedule_is",
                epochs=f"{job.epochs:g}",
                steps=f"{steps:,}" if steps else "?",
                rate=f"{job.learning_rate:g}",
                decay=f"{job.weight_decay:g}",
                clip=f"{job.max_grad_norm:g}",
            ),
        ),
        (strings("seed"), str(job.seed)),
        (strings("device"), strings.device(account.device or "–")),
    ]
    return [*rows, (strings("budget"), format_bytes(budget))] if budget else rows


def strategies(account: RunView, strings: Strings) -> list[Row]:
    """What each strategy of the recipe is for."""
    return [(word, strings.strategy(word.partition(":")[0])) for word in account.recipe]


def about_texts(texts: Texts, strings: Strings) -> list[str]:
    """What padding and cutting cost."""
    padding = strings(
        "padding_cost", computed=f"{texts.padding_factor:.2f}", plain=f"{texts.padding_factor_unsorted:.2f}"
    )
    return [padding, _about_cut(texts, strings)]


def _about_cut(texts: Texts, strings: Strings) -> str:
    if not texts.truncated_rows:
        return strings("cutting_none", limit=texts.limit)
    share = f"{texts.truncated_rows / sum(texts.rows):.1%}"
    sentence = strings("cutting_cost", rows=f"{texts.truncated_rows:,}", share=share, limit=texts.limit)
    if texts.cut_tokens is None or texts.tokens is None:
        return sentence + strings("full_stop")
    lost = texts.cut_tokens / (texts.tokens + texts.cut_tokens)
    return sentence + strings("cutting_tokens", tokens=f"{texts.cut_tokens:,}", share=f"{lost:.1%}")


# Opening: the run in a sentence and four numbers; where it stopped and how to go on.


_LABELS = 6


class Tile(NamedTuple):
    """A number to see at once."""

    title: str
    value: str
    below: str


def lead(account: RunView, strings: Strings) -> str:
    """What it is."""
    data = account.data
    shown = list(data.labels[:_LABELS]) if data else []
    labels = ", ".join(shown) + (", …" if data and len(data.labels) > _LABELS else "")
    return strings(
        "lead_random" if account.job.random_weights else "lead",
        model=account.model,
        rows=f"{data.train_rows:,}" if data else "?",
        data=account.job.data.rpartition("/")[2],
        labels=labels or "?",
    )


def tiles(account: RunView, strings: Strings) -> list[Tile]:
    """Quality, memory, time, parameters; of a run that did not finish what there is of them."""
    found = []
    if "eval_f1" in account.metrics:
        held_out = strings("held_out", rows=f"{account.data.validation_rows:,}") if account.data else ""
        found.append(Tile("F1", f"{account.metrics['eval_f1']:.4f}", held_out))
    found.append(_peak(account, strings))
    if account.run:
        pace = account.run.measured.seconds_per_step
        below = strings("time_a_step", time=strings.seconds(pace)) if pace else ""
        found.append(Tile(strings("time"), strings.seconds(account.run.measured.seconds), below))
    else:
        below = strings("of_steps", steps=f"{account.steps:,}") if account.steps else ""
        found.append(Tile(strings("step_of_steps"), f"{account.reached:,}", below))
    if account.parameters:
        trained, all_of_them = (format_count(number) for number in account.parameters)
        found.append(Tile(strings("trained_parameters"), trained, strings("of_all", all=all_of_them)))
    return found


def _peak(account: RunView, strings: Strings) -> Tile:
    measured, predicted = account.measured_peak, account.predicted_peak
    if measured and predicted:
        below = strings("foretold_as", size=format_bytes(predicted), error=f"{predicted / measured - 1:+.1%}")
        return Tile(strings("peak"), format_bytes(measured), below)
    if measured:
        return Tile(strings("peak"), format_bytes(measured), strings("not_foretold"))
    return Tile(
        f"{strings('peak')}, {strings('predicted')}",
        format_bytes(predicted) if predicted else "–",
        strings("not_measured"),
    )


class Unfinished(NamedTuple):
    """Where a run stopped, what it said, and the command that goes on."""

    lines: list[str]
    heading: str
    command: str


def unfinished(account: RunView, strings: Strings) -> Unfinished | None:
    """None where the run came to its end."""
    if account.run:
        return None
    steps = f"{account.steps:,}" if account.steps else "?"
    there = account.checkpoint is not None
    where = strings("stopped_at", step=f"{account.reached:,}", steps=steps) if there else strings("stopped_before")
    attempts = account.beginning.attempts if account.beginning else []
    reason = attempts[-1].ended if attempts else None
    said = strings("it_said", reason=reason) if reason else strings("it_said_nothing")
    return Unfinished([where, said], strings("go_on" if there else "begin_again"), account.go_on)


def resumed(account: RunView, strings: Strings) -> str | None:
    """How often it was started; None for once."""
    if account.attempts < 2:
        return None
    starts = [strings("started_from", when=_day(when), step=f"{step:,}") for when, step in account.starts]
    return strings("resumed", times=account.attempts, starts="; ".join(starts) or "–")


def _day(when: str) -> str:
    return when.replace("T", " ").partition("+")[0]


# Quality: the scores of every evaluation, and which of them was kept.


_SCORES = ("eval_f1", "eval_accuracy", "eval_loss")
_NOT_SCORES = ("eval_runtime", "eval_samples_per_second", "eval_steps_per_second")


def names(account: RunView) -> list[str]:
    """The scores that were measured, the usual ones first."""
    found = dict.fromkeys(key for entry in account.evaluations for key in entry if key.startswith("eval_"))
    others = [key for key in found if key not in (*_SCORES, *_NOT_SCORES)]
    return [*(key for key in _SCORES if key in found), *others]


def table(account: RunView) -> tuple[list[str], list[tuple[bool, list[str]]]]:
    """Headings, and a row for each evaluation: whether its weights were kept, and its numbers."""
    keys, kept = names(account), account.metrics.get("epoch") if account.run else None
    rows = []
    for entry in account.evaluations:
        cells = [_number(entry.get("epoch"), ".2f"), _number(entry.get("step"), ".0f")]
        rows.append((entry.get("epoch") == kept, [*cells, *(_number(entry.get(key), ".4f") for key in keys)]))
    return [_title(key) for key in keys], rows


def kept(account: RunView, strings: Strings) -> str | None:
    """Which epoch's weights the model has; None where there was only one to choose from."""
    if account.run is None or len(account.evaluations) < 2 or "epoch" not in account.metrics:
        return None
    return strings("kept_epoch", epoch=f"{account.metrics['epoch']:g}")


def _title(key: str) -> str:
    name = key.removeprefix("eval_")
    return {"f1": "F1"}.get(name, name)


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else f"{value:{form}}"


# Why: the plan's reasons in the reader's language, and what else would have fitted.


Cells = tuple[str, ...]


def opening(account: RunView, strings: Strings) -> list[str]:
    """Whether it was planned, and for what."""
    plan = _plan(account)
    if plan is None:
        return [strings("plan_given") if account.recipe else strings("plan_none")]
    made = strings("plan_made", budget=format_bytes(plan["budget_bytes"]), device=strings.device(plan["device"]))
    plain = plan["baseline"]
    time = strings.seconds(plain["seconds_per_epoch"])
    return [made, strings("plan_plain", peak=format_bytes(plain["peak_bytes"]), time=time)]


def reasons(account: RunView, strings: Strings) -> list[str]:
    """One for each strategy; nothing where nothing was planned."""
    plan = _plan(account)
    return [_reason(why, plan["seconds_per_epoch"], strings) for why in plan.get("reason_details", [])] if plan else []


def _reason(why: dict[str, Any], seconds: float, strings: Strings) -> str:
    word, without = why["strategy"], why["without"]
    kinds = strings("reason_and").join(strings.kind(kind) for kind in why["kinds"])
    share = strings("reason_share", kinds=kinds, share=f"{why['share']:.0%}") if kinds else ""
    beside = ""
    if without:
        longer = without["seconds_per_epoch"] - seconds
        key = "reason_slower" if longer > 0 else "reason_faster"
        beside = strings(key, peak=format_bytes(without["peak_bytes"]), time=strings.seconds(abs(longer)))
    return strings("reason", word=word, share=share, summary=strings.strategy(word.partition(":")[0]), without=beside)


def options(account: RunView, strings: Strings) -> list[Cells]:
    """The chosen recipe, the alternatives, the plain way: recipe, peak, an epoch, effect on the result."""
    plan = _plan(account)
    if plan is None:
        return []
    chosen = _cells(plan, strings, f" ({strings('chosen')})")
    return [chosen, *(_cells(option, strings) for option in (*plan["alternatives"], plan["baseline"]))]


def rejected(account: RunView) -> list[str]:
    """What was not taken, in the planner's own words."""
    plan = _plan(account)
    return list(plan["rejected"]) if plan else []


def _cells(option: dict[str, Any], strings: Strings, mark: str = "") -> Cells:
    recipe = (" ".join(option["recipe"]) or strings("plain")) + mark
    time = strings.seconds(option["seconds_per_epoch"])
    return recipe, format_bytes(option["peak_bytes"]), time, option["result"]


def _plan(account: RunView) -> dict[str, Any] | None:
    return account.beginning.plan if account.beginning else None
