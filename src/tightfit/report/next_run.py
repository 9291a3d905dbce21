"""Suggestions for the next run: the cheapest change first, with its predicted gain."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any, NamedTuple

from tightfit.messages import Message, msg
from tightfit.report.names import kind_name, memory_name, result_name
from tightfit.runs.folder import RunView
from tightfit.strategies import STRATEGIES
from tightfit.strategies.base import Changes, Result
from tightfit.units import format_bytes, format_seconds

_MIN_SAVING = 0.02  # of the peak
_MANY_TRUNCATED = 0.05  # of the texts
_RATE_OF_A_PART = 5e-4  # between those that are usual for LoRA and for a frozen encoder


class Suggestion(NamedTuple):
    """A sentence, and the command for it."""

    sentence: Message
    command: str | None = None


def suggestions(view: RunView) -> list[Suggestion]:
    """Finish the run first; then less memory, less time, better quality."""
    first = msg("First, resume the run:") if view.checkpoint else msg("First, start the run again:")
    finish = [] if view.run else [Suggestion(first, view.resume_command)]
    return [*finish, _less_memory(view), *_less_time(view), *_better_quality(view)]


def _less_memory(view: RunView) -> Suggestion:
    return _smaller_recipe(view) or _reduce_largest_kind(view) or _search_plan(view)


def _smaller_recipe(view: RunView) -> Suggestion | None:
    """Of the recipes with a predicted peak, the one that costs the least time per byte saved."""
    now, options = _predicted_options(view)
    if now is None:
        return None
    smaller = [option for option in options if option["peak_bytes"] < now["peak_bytes"] * (1 - _MIN_SAVING)]
    if not smaller:
        return None
    best = min(smaller, key=lambda option: (_seconds_per_byte(option, now), option["peak_bytes"]))
    sentence = msg(
        "To save {memory}: {recipe} is predicted to need {peak} instead of {now}, {saved} less{time}; "
        "effect on the result: {result}.",
        memory=memory_name(view.device),
        recipe=" ".join(best["recipe"]),
        peak=format_bytes(best["peak_bytes"]),
        now=format_bytes(now["peak_bytes"]),
        saved=format_bytes(now["peak_bytes"] - best["peak_bytes"]),
        time=_time_difference(best, now),
        result=result_name(best["result"]),
    )
    return Suggestion(sentence, view.rerun_command(f"{view.folder}-smaller", *_use_options(best["recipe"])))


def _predicted_options(view: RunView) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """The recipe of the run and others, as they were predicted together."""
    header = view.header
    if header and header.plan:
        return header.plan, list(header.plan["alternatives"])
    now = {"peak_bytes": view.estimate["peak_bytes"]} if view.estimate else None
    return now, [recipe.model_dump() for recipe in header.smaller_recipes] if header else []


def _seconds_per_byte(option: dict[str, Any], now: dict[str, Any]) -> float:
    """Seconds per epoch for each byte saved; 0 if it is no slower or its time is unknown."""
    if option.get("seconds_per_epoch") is None or now.get("seconds_per_epoch") is None:
        return 0.0
    longer = max(0.0, option["seconds_per_epoch"] - now["seconds_per_epoch"])
    return float(longer / (now["peak_bytes"] - option["peak_bytes"]))


def _time_difference(option: dict[str, Any], now: dict[str, Any]) -> Message | str:
    if option.get("seconds_per_epoch") is None or now.get("seconds_per_epoch") is None:
        return ""
    longer = option["seconds_per_epoch"] - now["seconds_per_epoch"]
    time = format_seconds(abs(longer))
    if longer > 0:
        return msg(", for about {time} more per epoch", time=time)
    return msg(", in about {time} less per epoch", time=time)


def _reduce_largest_kind(view: RunView) -> Suggestion | None:
    """The largest kind of memory at the peak, the strategies that reduce it, and a command that estimates the first."""
    estimate = view.estimate
    if estimate is None:
        return None
    kinds = {kind: size for kind, size in estimate["phases"][estimate["phase"]].items() if kind != "allocator"}
    kind = max(kinds, key=lambda name: kinds[name])
    values = {
        "memory": memory_name(view.device),
        "share": kinds[kind] / estimate["peak_bytes"],
        "kind": kind_name(kind),
        "size": format_bytes(kinds[kind]),
    }
    specs = _strategies_for(kind, view.recipe)
    if not specs:
        sentence = msg(
            "To save {memory}: {share:.0%} of the predicted peak is {kind} ({size}), and no other strategy reduces it; "
            "a smaller model would.",
            **values,
        )
        return Suggestion(sentence)
    options = _use_options([*view.recipe, specs[0]])
    command = shlex.join(["tightfit", "estimate", str(view.folder / "job.yaml"), *options])
    sentence = msg(
        "To save {memory}: {share:.0%} of the predicted peak is {kind} ({size}). "
        "Strategies that reduce it: {strategies}. Estimate the saving in a few seconds, without training:",
        **values,
        strategies=specs,
    )
    return Suggestion(sentence, command)


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


def _search_plan(view: RunView) -> Suggestion:
    command = shlex.join(["tightfit", "plan", str(view.folder / "job.yaml"), "--budget", "4GB"])
    memory = memory_name(view.device)
    return Suggestion(msg("No recipe is known to need less {memory}. Search for one with:", memory=memory), command)


def _less_time(view: RunView) -> Iterator[Suggestion]:
    plan, memory = view.header.plan if view.header else None, memory_name(view.device)
    if plan is None:
        return
    baseline = plan["baseline"]
    now = plan["seconds_per_epoch"] or 0.0  # not known for every GPU
    saved = now - (baseline["seconds_per_epoch"] or 0.0)
    if saved > 0.05 * now:
        yield Suggestion(
            msg(
                "To save time: with {peak} of {memory}, the baseline would take about {time} less per epoch.",
                peak=format_bytes(baseline["peak_bytes"]),
                memory=memory,
                time=format_seconds(saved),
            )
        )
    for line in plan.get("length_advice", [])[:1]:
        yield Suggestion(msg("To save {memory} and time with shorter texts: {line}.", memory=memory, line=line))


def _better_quality(view: RunView) -> Iterator[Suggestion]:
    lengths = view.header.lengths if view.header else None
    if lengths and lengths.truncated_rows > _MANY_TRUNCATED * sum(lengths.rows):
        yield Suggestion(
            msg(
                "For better quality: {share:.0%} of the texts are truncated at {limit} tokens. "
                "A larger --max-length keeps more of them and needs more {memory}.",
                share=lengths.truncated_rows / sum(lengths.rows),
                limit=lengths.limit,
                memory=memory_name(view.device),
            )
        )
    if view.run and view.run.quality and view.run.quality.answer is not None:
        yield _train_more(view)
        return
    evaluations, best = view.evaluations, view.metrics.get("epoch")
    if view.run is None or not evaluations or best is None or view.job.max_steps:
        return
    if evaluations[-1].get("epoch") == best:
        sentence = msg("For better quality: the last epoch was the best so far. Train one more with:")
        yield Suggestion(sentence, f"{view.resume_command} --epochs {view.job.epochs + 1:g}")
    else:
        yield Suggestion(
            msg(
                "Epoch {best:g} of {epochs:g} was the best, and the later ones were worse: "
                "use fewer epochs or a lower learning rate.",
                best=best,
                epochs=view.job.epochs,
            )
        )


def _train_more(view: RunView) -> Suggestion:
    """For a model that always gives the same answer: three times the steps, and a usual rate if only a part learns."""
    trained, total = view.parameters or (0, 0)
    rate = view.job.learning_rate if trained == total else max(view.job.learning_rate, _RATE_OF_A_PART)
    sentence = msg("For better quality: the model predicts the same for every text, so train it for more steps:")
    if rate > view.job.learning_rate:
        sentence = msg(
            "For better quality: the model predicts the same for every text, so train it for more steps "
            "with a higher learning rate:"
        )
    steps = ["--max-steps", str(3 * view.job.max_steps)] if view.job.max_steps else []
    options = [*(steps or ["--epochs", f"{3 * view.job.epochs:g}"]), "--learning-rate", f"{rate:g}"]
    return Suggestion(sentence, view.rerun_command(f"{view.folder}-longer", *options))


def _use_options(recipe: list[str]) -> list[str]:
    return [option for spec in recipe for option in ("--use", spec)]
