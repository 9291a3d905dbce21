"""Suggestions for the next run: the cheapest change first, with its predicted gain."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any, NamedTuple

from tightfit.report.i18n.strings import Strings
from tightfit.runs.folder import RunView
from tightfit.strategies import STRATEGIES
from tightfit.strategies.base import Changes, Result
from tightfit.units import format_bytes

_MIN_SAVING = 0.02  # of the peak
_MANY_TRUNCATED = 0.05  # of the texts


class Suggestion(NamedTuple):
    """A sentence, and the command for it."""

    sentence: str
    command: str | None = None


def suggestions(view: RunView, strings: Strings) -> list[Suggestion]:
    """Finish the run first; then less memory, less time, better quality."""
    first = strings("next_resume" if view.checkpoint else "next_restart")
    finish = [] if view.run else [Suggestion(first, view.resume_command)]
    return [*finish, _less_memory(view, strings), *_less_time(view, strings), *_better_quality(view, strings)]


def _less_memory(view: RunView, strings: Strings) -> Suggestion:
    return _smaller_recipe(view, strings) or _reduce_largest_kind(view, strings) or _search_plan(view, strings)


def _smaller_recipe(view: RunView, strings: Strings) -> Suggestion | None:
    """Of the recipes with a predicted peak, the one that costs the least time per byte saved."""
    now, options = _predicted_options(view)
    if now is None:
        return None
    smaller = [option for option in options if option["peak_bytes"] < now["peak_bytes"] * (1 - _MIN_SAVING)]
    if not smaller:
        return None
    best = min(smaller, key=lambda option: (_seconds_per_byte(option, now), option["peak_bytes"]))
    sentence = strings(
        "next_smaller",
        recipe=" ".join(best["recipe"]),
        peak=format_bytes(best["peak_bytes"]),
        now=format_bytes(now["peak_bytes"]),
        saved=format_bytes(now["peak_bytes"] - best["peak_bytes"]),
        time=_time_difference(best, now, strings),
        result=strings.result(best["result"]),
    )
    return Suggestion(sentence, view.rerun_command(f"{view.folder}-smaller", *_use_options(best["recipe"])))


def _predicted_options(view: RunView) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """The recipe of the run and others, as they were predicted together."""
    header = view.header
    if header and header.plan:
        return header.plan, list(header.plan["alternatives"])
    now = {"peak_bytes": view.predicted_peak} if view.predicted_peak else None
    return now, [recipe.model_dump() for recipe in header.smaller_recipes] if header else []


def _seconds_per_byte(option: dict[str, Any], now: dict[str, Any]) -> float:
    """Seconds per epoch for each byte saved; 0 if it is no slower or its time is unknown."""
    if "seconds_per_epoch" not in option or "seconds_per_epoch" not in now:
        return 0.0
    longer = max(0.0, option["seconds_per_epoch"] - now["seconds_per_epoch"])
    return float(longer / (now["peak_bytes"] - option["peak_bytes"]))


def _time_difference(option: dict[str, Any], now: dict[str, Any], strings: Strings) -> str:
    if "seconds_per_epoch" not in option or "seconds_per_epoch" not in now:
        return ""
    longer = option["seconds_per_epoch"] - now["seconds_per_epoch"]
    return strings("next_slower" if longer > 0 else "next_faster", time=strings.seconds(abs(longer)))


def _reduce_largest_kind(view: RunView, strings: Strings) -> Suggestion | None:
    """The largest kind of memory at the peak, the strategies that reduce it, and a command that estimates the first."""
    estimate = view.estimate
    if estimate is None:
        return None
    kinds = {kind: size for kind, size in estimate["phases"][estimate["phase"]].items() if kind != "allocator"}
    kind = max(kinds, key=lambda name: kinds[name])
    values = {
        "share": f"{kinds[kind] / estimate['peak_bytes']:.0%}",
        "kind": strings.kind(kind),
        "size": format_bytes(kinds[kind]),
    }
    specs = _strategies_for(kind, view.recipe)
    if not specs:
        return Suggestion(strings("next_kind_none", **values))
    options = _use_options([*view.recipe, specs[0]])
    command = shlex.join(["tightfit", "estimate", str(view.folder / "job.yaml"), *options])
    return Suggestion(strings("next_kind", **values, strategies=strings.join(specs)), command)


def _strategies_for(kind: str, recipe: list[str]) -> list[str]:
    """Strategies that reduce a kind of memory, train the same parameters and combine with the recipe, in list order."""
    used = {spec.partition(":")[0] for spec in recipe}
    taken = {STRATEGIES[name].exclusive for name in used if name in STRATEGIES} - {None}
    in_backward = any(
        Changes.GRADIENTS | Changes.STEP in STRATEGIES[name].changes for name in used if name in STRATEGIES
    )
    return [
        strategy.example()
        for name, strategy in STRATEGIES.items()
        if kind in [each.value for each in strategy.frees]
        and strategy.result is not Result.DIFFERENT
        and name not in used
        and strategy.exclusive not in taken
        and not (in_backward and strategy.exclusive == "micro-batch")
    ]


def _search_plan(view: RunView, strings: Strings) -> Suggestion:
    command = shlex.join(["tightfit", "plan", str(view.folder / "job.yaml"), "--budget", "4GB"])
    return Suggestion(strings("next_plan"), command)


def _less_time(view: RunView, strings: Strings) -> Iterator[Suggestion]:
    plan = view.header.plan if view.header else None
    if plan is None:
        return
    baseline = plan["baseline"]
    saved = plan["seconds_per_epoch"] - baseline["seconds_per_epoch"]
    if saved > 0.05 * plan["seconds_per_epoch"]:
        peak, time = format_bytes(baseline["peak_bytes"]), strings.seconds(saved)
        yield Suggestion(strings("next_baseline", peak=peak, time=time))
    for line in plan.get("length_advice", [])[:1]:
        yield Suggestion(strings("next_shorter", line=line))


def _better_quality(view: RunView, strings: Strings) -> Iterator[Suggestion]:
    lengths = view.header.lengths if view.header else None
    if lengths and lengths.truncated_rows > _MANY_TRUNCATED * sum(lengths.rows):
        share = f"{lengths.truncated_rows / sum(lengths.rows):.0%}"
        yield Suggestion(strings("next_longer", share=share, limit=lengths.limit))
    evaluations, best = view.evaluations, view.metrics.get("epoch")
    if view.run is None or not evaluations or best is None or view.job.max_steps:
        return
    if evaluations[-1].get("epoch") == best:
        more = shlex.join(["--epochs", f"{view.job.epochs + 1:g}"])
        yield Suggestion(strings("next_epoch"), f"{view.resume_command} {more}")
    else:
        yield Suggestion(strings("next_fewer", best=f"{best:g}", epochs=f"{view.job.epochs:g}"))


def _use_options(recipe: list[str]) -> list[str]:
    return [option for spec in recipe for option in ("--use", spec)]
