"""Next step: the cheapest lever first, with the gain that was foretold for it; no number that nobody computed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any, NamedTuple

from tightfit.report.i18n import Words
from tightfit.runs.folder import Account
from tightfit.strategies import STRATEGIES
from tightfit.strategies.base import Result
from tightfit.units import format_bytes

_WORTH_IT = 0.02  # of the peak
_OFTEN_CUT = 0.05  # of the texts


class Step(NamedTuple):
    """A sentence, and the command that does it."""

    sentence: str
    command: str | None = None


def next_steps(account: Account, say: Words) -> list[Step]:
    """What is worth a try, most worthwhile first."""
    go_on = say("next_go_on" if account.checkpoint else "next_begin")
    steps = [] if account.run else [Step(go_on, account.go_on)]
    return [*steps, _less_memory(account, say), *_less_time(account, say), *_better(account, say)]


def _less_memory(account: Account, say: Words) -> Step:
    return _known_to_be_smaller(account, say) or _what_frees_most(account, say) or _ask_for_a_plan(account, say)


def _known_to_be_smaller(account: Account, say: Words) -> Step | None:
    """Of the recipes whose peak was foretold, the one that costs the least time for what it saves."""
    now, options = _foretold_options(account)
    if now is None:
        return None
    smaller = [each for each in options if each["peak_bytes"] < now["peak_bytes"] * (1 - _WORTH_IT)]
    if not smaller:
        return None
    best = min(smaller, key=lambda option: (_price(option, now), option["peak_bytes"]))
    sentence = say(
        "next_smaller",
        recipe=" ".join(best["recipe"]),
        peak=format_bytes(best["peak_bytes"]),
        now=format_bytes(now["peak_bytes"]),
        saved=format_bytes(now["peak_bytes"] - best["peak_bytes"]),
        time=_longer(best, now, say),
        result=say.result(best["result"]),
    )
    return Step(sentence, account.again(f"{account.folder}-smaller", *_uses(best["recipe"])))


def _foretold_options(account: Account) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """What was chosen and what else was looked at, as they were foretold together."""
    known = account.beginning
    if known and known.plan:
        return known.plan, list(known.plan["alternatives"])
    peak = account.foretold_peak
    return ({"peak_bytes": peak} if peak else None), [each.model_dump() for each in known.smaller] if known else []


def _price(option: dict[str, Any], now: dict[str, Any]) -> float:
    """Seconds an epoch for each byte that is saved; nothing where it is no slower or nobody knows."""
    if "seconds_per_epoch" not in option or "seconds_per_epoch" not in now:
        return 0.0
    longer = max(0.0, option["seconds_per_epoch"] - now["seconds_per_epoch"])
    return float(longer / (now["peak_bytes"] - option["peak_bytes"]))


def _longer(option: dict[str, Any], now: dict[str, Any], say: Words) -> str:
    if "seconds_per_epoch" not in option or "seconds_per_epoch" not in now:
        return ""
    longer = option["seconds_per_epoch"] - now["seconds_per_epoch"]
    return say("next_slower" if longer > 0 else "next_faster", time=say.seconds(abs(longer)))


def _what_frees_most(account: Account, say: Words) -> Step | None:
    """The largest kind of the peak, and what makes it smaller: how much, a rehearsal tells."""
    bill = account.bill
    if bill is None:
        return None
    kinds = {kind: size for kind, size in bill["bill"][bill["moment"]].items() if kind != "allocator"}
    kind = max(kinds, key=lambda name: kinds[name])
    values = {
        "share": f"{kinds[kind] / bill['peak_bytes']:.0%}",
        "kind": say.kind(kind),
        "size": format_bytes(kinds[kind]),
    }
    words = _strategies_for(kind, account.recipe)
    if not words:
        return Step(say("next_nothing_frees", **values))
    uses = [*account.recipe, words[0]]
    command = shlex.join(["tightfit", "rehearse", str(account.folder / "job.yaml"), *_uses(uses)])
    return Step(say("next_kind", **values, strategies=", ".join(words)), command)


def _strategies_for(kind: str, recipe: list[str]) -> list[str]:
    """Those that free a kind, do not change what is trained, and go with the recipe; gentlest first."""
    there = {word.partition(":")[0] for word in recipe}
    chosen = {STRATEGIES[name].chooses for name in there if name in STRATEGIES} - {None}
    in_pass = any(STRATEGIES[name].steps_in_pass for name in there if name in STRATEGIES)
    return [
        strategy.example()
        for name, strategy in STRATEGIES.items()
        if kind in [each.value for each in strategy.frees]
        and strategy.result is not Result.DIFFERENT
        and name not in there
        and strategy.chooses not in chosen
        and not (in_pass and strategy.chooses == "slices")
    ]


def _ask_for_a_plan(account: Account, say: Words) -> Step:
    command = shlex.join(["tightfit", "plan", str(account.folder / "job.yaml"), "--budget", "4GB"])
    return Step(say("next_plan"), command)


def _less_time(account: Account, say: Words) -> Iterator[Step]:
    plan = account.beginning.plan if account.beginning else None
    if plan is None:
        return
    gained = plan["seconds_per_epoch"] - plan["plain"]["seconds_per_epoch"]
    if gained > 0.05 * plan["seconds_per_epoch"]:
        yield Step(say("next_plain", peak=format_bytes(plan["plain"]["peak_bytes"]), time=say.seconds(gained)))
    for line in plan.get("advice", [])[:1]:
        yield Step(say("next_advice", line=line))


def _better(account: Account, say: Words) -> Iterator[Step]:
    texts = account.beginning.texts if account.beginning else None
    if texts and texts.cut_rows > _OFTEN_CUT * sum(texts.rows):
        yield Step(say("next_cut", share=f"{texts.cut_rows / sum(texts.rows):.0%}", limit=texts.limit))
    evaluations, best = account.evaluations, account.metrics.get("epoch")
    if account.run is None or not evaluations or best is None or account.job.max_steps:
        return
    if evaluations[-1].get("epoch") == best:
        more = ["--epochs", f"{account.job.epochs + 1:g}"]
        yield Step(say("next_epoch"), f"{account.go_on} {shlex.join(more)}")
    else:
        yield Step(say("next_fewer", best=f"{best:g}", epochs=f"{account.job.epochs:g}"))


def _uses(recipe: list[str]) -> list[str]:
    return [word for strategy in recipe for word in ("--use", strategy)]
