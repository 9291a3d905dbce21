"""Why: the plan's reasons in the reader's language, and what else would have fitted."""

from __future__ import annotations

from typing import Any

from tightfit.report.account import Account
from tightfit.report.words import Words
from tightfit.units import format_bytes

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
