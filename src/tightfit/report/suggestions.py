"""Next step: the cheapest lever first, with the gain that was foretold for it; no number that nobody computed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any, NamedTuple

from tightfit.report.i18n import Strings
from tightfit.runs.folder import RunView
from tightfit.strategies import STRATEGIES
from tightfit.strategies.base import Result
from tightfit.units import format_bytes

_WORTH_IT = 0.02  # of the peak
_OFTEN_CUT = 0.05  # of the texts


class Step(NamedTuple):
    """A sentence, and the command that does it."""

    sentence: str
    command: str | None = None


def next_steps(account: RunView, strings: Strings) -> list[Step]:
    """What is worth a try, most worthwhile first."""
    go_on = strings("next_go_on" if account.checkpoint else "next_begin")
    steps = [] if account.run else [Step(go_on, account.go_on)]
    return [*steps, _less_memory(account, strings), *_less_time(account, strings), *_better(account, strings)]


def _less_memory(account: RunView, strings: Strings) -> Step:
    return (
        _known_to_be_smaller(account, strings)
        or _what_frees_most(account, strings)
        or _ask_for_a_plan(account, strings)
    )


def _known_to_be_smaller(account: RunView, strings: Strings) -> Step | None:
    """Of the recipes whose peak was foretold, the one that costs the least time for what it saves."""
    now, options = _foretold_options(account)
    if now is None:
        return None
    smaller = [each for each in options if each["peak_bytes"] < now["peak_bytes"] * (1 - _WORTH_IT)]
    if not smaller:
        return None
    best = min(smaller, key=lambda option: (_price(option, now), option["peak_bytes"]))
    sentence = strings(
        "next_smaller",
        recipe=" ".join(best["recipe"]),
        peak=format_bytes(best["peak_bytes"]),
        now=format_bytes(now["peak_bytes"]),
        saved=format_bytes(now["peak_bytes"] - best["peak_bytes"]),
        time=_longer(best, now, strings),
        result=strings.result(best["result"]),
    )
    return Step(sentence, account.again(f"{account.folder}-smaller", *_uses(best["recipe"])))


def _foretold_options(account: RunView) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """What was chosen and what else was looked at, as they were foretold together."""
    known = account.beginning
    if known and known.plan:
        return known.plan, list(known.plan["alternatives"])
    peak = account.predicted_peak
    return ({"peak_bytes": peak} if peak else None), [each.model_dump() for each in known.smaller] if known else []


def _price(option: dict[str, Any], now: dict[str, Any]) -> float:
    """Seconds an epoch for each byte that is saved; nothing where it is no slower or nobody knows."""
    if "seconds_per_epoch" not in option or "seconds_per_epoch" not in now:
        return 0.0
    longer = max(0.0, option["seconds_per_epoch"] - now["seconds_per_epoch"])
    return float(longer / (now["peak_bytes"] - option["peak_bytes"]))


def _longer(option: dict[str, Any], now: dict[str, Any], strings: Strings) -> str:
    if "seconds_per_epoch" not in option or "seconds_per_epoch" not in now:
        return ""
    longer = option["seconds_per_epoch"] - now["seconds_per_epoch"]
    return strings("next_slower" if longer > 0 else "next_faster", time=strings.seconds(abs(longer)))


def _what_frees_most(account: RunView, strings: Strings) -> Step | None:
    """The largest kind of the peak, and what makes it smaller: how much, a rehearsal tells."""
    estimate = account.estimate
    if estimate is None:
        return None
    kinds = {kind: size for kind, size in estimate["phases"][estimate["phase"]].items() if kind != "allocator"}
    kind = max(kinds, key=lambda name: kinds[name])
    values = {
        "share": f"{kinds[kind] / estimate['peak_bytes']:.0%}",
        "kind": strings.kind(kind),
        "size": format_bytes(kinds[kind]),
    }
    specs = _strategies_for(kind, account.recipe)
    if not specs:
        return Step(strings("next_nothing_frees", **values))
    uses = [*account.recipe, specs[0]]
    command = shlex.join(["tightfit", "estimate", str(account.folder / "job.yaml"), *_uses(uses)])
    return Step(strings("next_kind", **values, strategies=", ".join(specs)), command)


def _strategies_for(kind: str, recipe: list[str]) -> list[str]:
    """Those that free a kind, do not change what is trained, and go with the recipe; gentlest first."""
    there = {word.partition(":")[0] for word in recipe}
    chosen = {STRATEGIES[name].exclusive for name in there if name in STRATEGIES} - {None}
    in_pass = any(STRATEGIES[name].steps_in_backward for name in there if name in STRATEGIES)
    return [
        strategy.example()
        for name, strategy in STRATEGIES.items()
        if kind in [each.value for each in strategy.frees]
        and strategy.result is not Result.DIFFERENT
        and name not in there
        and strategy.exclusive not in chosen
        and not (in_pass and strategy.exclusive == "micro-batch")
    ]


def _ask_for_a_plan(account: RunView, strings: Strings) -> Step:
    command = shlex.join(["tightfit", "plan", str(account.folder / "job.yaml"), "--budget", "4GB"])
    return Step(strings("next_plan"), command)


def _less_time(account: RunView, strings: Strings) -> Iterator[Step]:
    plan = account.beginning.plan if account.beginning else None
    if plan is None:
        return
    gained = plan["seconds_per_epoch"] - plan["baseline"]["seconds_per_epoch"]
    if gained > 0.05 * plan["seconds_per_epoch"]:
        yield Step(
            strings("next_plain", peak=format_bytes(plan["baseline"]["peak_bytes"]), time=strings.seconds(gained))
        )
    for line in plan.get("advice", [])[:1]:
        yield Step(strings("next_advice", line=line))


def _better(account: RunView, strings: Strings) -> Iterator[Step]:
    texts = account.beginning.texts if account.beginning else None
    if texts and texts.truncated_rows > _OFTEN_CUT * sum(texts.rows):
        yield Step(strings("next_cut", share=f"{texts.truncated_rows / sum(texts.rows):.0%}", limit=texts.limit))
    evaluations, best = account.evaluations, account.metrics.get("epoch")
    if account.run is None or not evaluations or best is None or account.job.max_steps:
        return
    if evaluations[-1].get("epoch") == best:
        more = ["--epochs", f"{account.job.epochs + 1:g}"]
        yield Step(strings("next_epoch"), f"{account.go_on} {shlex.join(more)}")
    else:
        yield Step(strings("next_fewer", best=f"{best:g}", epochs=f"{account.job.epochs:g}"))


def _uses(recipe: list[str]) -> list[str]:
    return [word for strategy in recipe for word in ("--use", strategy)]
