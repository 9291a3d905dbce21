"""Cost: memory by moment, foretold beside measured; the largest tensors; time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tightfit.report.i18n import Words
from tightfit.runs.folder import Account
from tightfit.runs.header import Texts
from tightfit.units import format_bytes, format_count

_IN_ORDER = ("load", "features", "forward", "backward", "step", "evaluate", "save", "load-best", "between")


class Moment(NamedTuple):
    """A row of the table of moments."""

    name: str
    foretold: str
    measured: str
    error: str
    is_peak: bool


def foretold_moments(account: Account) -> Mapping[str, int]:
    """Bytes, overhead included."""
    if account.run and account.run.predicted.moments:
        return account.run.predicted.moments
    bill = account.bill
    return {name: bill["overhead_bytes"] + sum(kinds.values()) for name, kinds in bill["bill"].items()} if bill else {}


def measured_moments(account: Account) -> Mapping[str, int]:
    """Bytes; nothing where the run did not finish."""
    return account.run.measured.moments if account.run else {}


def moments(account: Account, say: Words) -> list[Moment]:
    """Every moment that was foretold or measured, in the order of a training."""
    foretold, measured = foretold_moments(account), measured_moments(account)
    names = sorted({*foretold, *measured}, key=lambda name: (_place(name), name))
    peaks = measured or foretold
    return [
        Moment(
            say.moment(name),
            format_bytes(foretold[name]) if name in foretold else "–",
            format_bytes(measured[name]) if name in measured else "–",
            f"{foretold[name] / measured[name] - 1:+.1%}" if measured.get(name) and name in foretold else "–",
            peaks.get(name) == max(peaks.values()),
        )
        for name in names
    ]


def _place(name: str) -> int:
    return _IN_ORDER.index(name) if name in _IN_ORDER else len(_IN_ORDER)


def about_peak(account: Account, say: Words) -> str | None:
    """The forecast in a sentence."""
    bill = account.bill
    if bill is None:
        return None
    low, high = (format_bytes(size) for size in bill["error_band"])
    peak, moment = format_bytes(bill["peak_bytes"]), say.moment(bill["moment"])
    return say("peak_is", peak=peak, moment=moment, worst=say.worst(bill["worst"]), low=low, high=high)


class TensorRow(NamedTuple):
    """A row of the table of tensors."""

    owner: str
    kind: str
    shape: str
    each: str
    together: str


def largest(account: Account, say: Words) -> list[TensorRow]:
    """The most memory first."""
    tensors = account.beginning.largest if account.beginning else []
    return [
        TensorRow(
            say("owner_unknown") if each.owner is None else each.owner or say("owner_model"),
            say.kind(each.kind),
            " × ".join(map(str, each.shape)) if each.shape else say("unknown"),
            f"{each.count} × {format_bytes(each.bytes)}" if each.count > 1 else format_bytes(each.bytes),
            format_bytes(each.count * each.bytes),
        )
        for each in tensors
    ]


def times(account: Account, say: Words) -> list[tuple[str, str, str]]:
    """What, measured, foretold."""
    pace = account.beginning.seconds_per_step if account.beginning else None
    run = account.run
    if run is None:
        return [(say("step_time"), "–", say.seconds(pace))] if pace else []
    pace = run.predicted.seconds_per_step or pace
    rows = [(say("whole_time"), say.seconds(run.measured.seconds), "–")]
    if run.measured.seconds_per_step:
        foretold = say.seconds(pace) if pace else "–"
        rows.append((say("step_time"), say.seconds(run.measured.seconds_per_step), foretold))
    if run.measured.epochs and len(run.measured.epochs) > 1:
        rows.append((say("epoch_times"), ", ".join(say.seconds(each) for each in run.measured.epochs), "–"))
    return rows


# Facts: what was trained and how, as rows of a table; and how long the texts are.


Row = tuple[str, str]


def trained(account: Account, say: Words) -> list[Row]:
    """The model, the data, the parameters."""
    job, data, parameters = account.job, account.data, account.parameters
    weights = f" ({say('random_weights')})" if job.random_weights else ""
    rows = [(say("model"), job.model + weights), (say("task"), job.task), (say("data"), job.data)]
    if data:
        rows.append(("", say("rows", train=f"{data.train_rows:,}", validation=f"{data.validation_rows:,}")))
        rows.append(("", say("columns", text=" + ".join(data.text_columns), label=data.label_column)))
        rows.append((say("labels"), ", ".join(data.labels)))
    if parameters and parameters[1]:
        learn, every = parameters
        of = say("parameters_of", trained=format_count(learn), all=format_count(every), share=f"{learn / every:.1%}")
        rows.append((say("parameters"), of))
    return rows


def how(account: Account, say: Words) -> list[Row]:
    """The recipe's numbers, in the words of the job."""
    job, steps = account.job, account.steps
    budget = account.beginning.budget_bytes if account.beginning else None
    rows = [
        (say("recipe"), " ".join(account.recipe) or say("plain")),
        (say("effect"), say.result(account.result)),
        (say("batch"), say("batch_rows", rows=job.batch_size)),
        (say("text_limit"), say("tokens_count", count=account.max_length)),
        (
            say("schedule"),
            say(
                "schedule_is",
                epochs=f"{job.epochs:g}",
                steps=f"{steps:,}" if steps else "?",
                rate=f"{job.learning_rate:g}",
                decay=f"{job.weight_decay:g}",
                clip=f"{job.max_grad_norm:g}",
            ),
        ),
        (say("seed"), str(job.seed)),
        (say("device"), say.device(account.device or "–")),
    ]
    return [*rows, (say("budget"), format_bytes(budget))] if budget else rows


def strategies(account: Account, say: Words) -> list[Row]:
    """What each strategy of the recipe is for."""
    return [(word, say.strategy(word.partition(":")[0])) for word in account.recipe]


def about_texts(texts: Texts, say: Words) -> list[str]:
    """What padding and cutting cost."""
    padding = say("padding_cost", computed=f"{texts.computed_per_token:.2f}", plain=f"{texts.plain_per_token:.2f}")
    return [padding, _about_cut(texts, say)]


def _about_cut(texts: Texts, say: Words) -> str:
    if not texts.cut_rows:
        return say("cutting_none", limit=texts.limit)
    share = f"{texts.cut_rows / sum(texts.rows):.1%}"
    sentence = say("cutting_cost", rows=f"{texts.cut_rows:,}", share=share, limit=texts.limit)
    if texts.cut_tokens is None or texts.tokens is None:
        return sentence + say("full_stop")
    lost = texts.cut_tokens / (texts.tokens + texts.cut_tokens)
    return sentence + say("cutting_tokens", tokens=f"{texts.cut_tokens:,}", share=f"{lost:.1%}")


# Opening: the run in a sentence and four numbers; where it stopped and how to go on.


_LABELS = 6


class Tile(NamedTuple):
    """A number to see at once."""

    title: str
    value: str
    below: str


def lead(account: Account, say: Words) -> str:
    """What it is."""
    data = account.data
    shown = list(data.labels[:_LABELS]) if data else []
    labels = ", ".join(shown) + (", …" if data and len(data.labels) > _LABELS else "")
    return say(
        "lead_random" if account.job.random_weights else "lead",
        model=account.model,
        rows=f"{data.train_rows:,}" if data else "?",
        data=account.job.data.rpartition("/")[2],
        labels=labels or "?",
    )


def tiles(account: Account, say: Words) -> list[Tile]:
    """Quality, memory, time, parameters; of a run that did not finish what there is of them."""
    found = []
    if "eval_f1" in account.metrics:
        held_out = say("held_out", rows=f"{account.data.validation_rows:,}") if account.data else ""
        found.append(Tile("F1", f"{account.metrics['eval_f1']:.4f}", held_out))
    found.append(_peak(account, say))
    if account.run:
        pace = account.run.measured.seconds_per_step
        below = say("time_a_step", time=say.seconds(pace)) if pace else ""
        found.append(Tile(say("time"), say.seconds(account.run.measured.seconds), below))
    else:
        below = say("of_steps", steps=f"{account.steps:,}") if account.steps else ""
        found.append(Tile(say("step_of_steps"), f"{account.reached:,}", below))
    if account.parameters:
        trained, all_of_them = (format_count(number) for number in account.parameters)
        found.append(Tile(say("trained_parameters"), trained, say("of_all", all=all_of_them)))
    return found


def _peak(account: Account, say: Words) -> Tile:
    measured, foretold = account.measured_peak, account.foretold_peak
    if measured and foretold:
        below = say("foretold_as", size=format_bytes(foretold), error=f"{foretold / measured - 1:+.1%}")
        return Tile(say("peak"), format_bytes(measured), below)
    if measured:
        return Tile(say("peak"), format_bytes(measured), say("not_foretold"))
    return Tile(f"{say('peak')}, {say('foretold')}", format_bytes(foretold) if foretold else "–", say("not_measured"))


class Unfinished(NamedTuple):
    """Where a run stopped, what it said, and the command that goes on."""

    lines: list[str]
    heading: str
    command: str


def unfinished(account: Account, say: Words) -> Unfinished | None:
    """None where the run came to its end."""
    if account.run:
        return None
    steps = f"{account.steps:,}" if account.steps else "?"
    there = account.checkpoint is not None
    where = say("stopped_at", step=f"{account.reached:,}", steps=steps) if there else say("stopped_before")
    attempts = account.beginning.attempts if account.beginning else []
    reason = attempts[-1].ended if attempts else None
    said = say("it_said", reason=reason) if reason else say("it_said_nothing")
    return Unfinished([where, said], say("go_on" if there else "begin_again"), account.go_on)


def resumed(account: Account, say: Words) -> str | None:
    """How often it was started; None for once."""
    if account.attempts < 2:
        return None
    starts = [say("started_from", when=_day(when), step=f"{step:,}") for when, step in account.starts]
    return say("resumed", times=account.attempts, starts="; ".join(starts) or "–")


def _day(when: str) -> str:
    return when.replace("T", " ").partition("+")[0]


# Quality: the scores of every evaluation, and which of them was kept.


_SCORES = ("eval_f1", "eval_accuracy", "eval_loss")
_NOT_SCORES = ("eval_runtime", "eval_samples_per_second", "eval_steps_per_second")


def names(account: Account) -> list[str]:
    """The scores that were measured, the usual ones first."""
    found = dict.fromkeys(key for entry in account.evaluations for key in entry if key.startswith("eval_"))
    others = [key for key in found if key not in (*_SCORES, *_NOT_SCORES)]
    return [*(key for key in _SCORES if key in found), *others]


def table(account: Account) -> tuple[list[str], list[tuple[bool, list[str]]]]:
    """Headings, and a row for each evaluation: whether its weights were kept, and its numbers."""
    keys, kept = names(account), account.metrics.get("epoch") if account.run else None
    rows = []
    for entry in account.evaluations:
        cells = [_number(entry.get("epoch"), ".2f"), _number(entry.get("step"), ".0f")]
        rows.append((entry.get("epoch") == kept, [*cells, *(_number(entry.get(key), ".4f") for key in keys)]))
    return [_title(key) for key in keys], rows


def kept(account: Account, say: Words) -> str | None:
    """Which epoch's weights the model has; None where there was only one to choose from."""
    if account.run is None or len(account.evaluations) < 2 or "epoch" not in account.metrics:
        return None
    return say("kept_epoch", epoch=f"{account.metrics['epoch']:g}")


def _title(key: str) -> str:
    name = key.removeprefix("eval_")
    return {"f1": "F1"}.get(name, name)


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else f"{value:{form}}"


# Why: the plan's reasons in the reader's language, and what else would have fitted.


Cells = tuple[str, ...]


def opening(account: Account, say: Words) -> list[str]:
    """Whether it was planned, and for what."""
    plan = _plan(account)
    if plan is None:
        return [say("plan_given") if account.recipe else say("plan_none")]
    made = say("plan_made", budget=format_bytes(plan["budget_bytes"]), device=say.device(plan["device"]))
    plain = plan["plain"]
    time = say.seconds(plain["seconds_per_epoch"])
    return [made, say("plan_plain", peak=format_bytes(plain["peak_bytes"]), time=time)]


def reasons(account: Account, say: Words) -> list[str]:
    """One for each strategy; nothing where nothing was planned."""
    plan = _plan(account)
    return [_reason(why, plan["seconds_per_epoch"], say) for why in plan.get("why", [])] if plan else []


def _reason(why: dict[str, Any], seconds: float, say: Words) -> str:
    word, without = why["strategy"], why["without"]
    kinds = say("reason_and").join(say.kind(kind) for kind in why["kinds"])
    share = say("reason_share", kinds=kinds, share=f"{why['share']:.0%}") if kinds else ""
    beside = ""
    if without:
        longer = without["seconds_per_epoch"] - seconds
        key = "reason_slower" if longer > 0 else "reason_faster"
        beside = say(key, peak=format_bytes(without["peak_bytes"]), time=say.seconds(abs(longer)))
    return say("reason", word=word, share=share, summary=say.strategy(word.partition(":")[0]), without=beside)


def options(account: Account, say: Words) -> list[Cells]:
    """The chosen recipe, the alternatives, the plain way: recipe, peak, an epoch, effect on the result."""
    plan = _plan(account)
    if plan is None:
        return []
    chosen = _cells(plan, say, f" ({say('chosen')})")
    return [chosen, *(_cells(option, say) for option in (*plan["alternatives"], plan["plain"]))]


def refused(account: Account) -> list[str]:
    """What was not taken, in the planner's own words."""
    plan = _plan(account)
    return list(plan["refused"]) if plan else []


def _cells(option: dict[str, Any], say: Words, mark: str = "") -> Cells:
    recipe = (" ".join(option["recipe"]) or say("plain")) + mark
    time = say.seconds(option["seconds_per_epoch"])
    return recipe, format_bytes(option["peak_bytes"]), time, option["result"]


def _plan(account: Account) -> dict[str, Any] | None:
    return account.beginning.plan if account.beginning else None
