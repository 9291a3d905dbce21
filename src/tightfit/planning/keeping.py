"""Keeping to a budget: the recipe that a training under one takes."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass

from tightfit.budget import Budget
from tightfit.job import Job
from tightfit.planning.planner import Planner, forget_planners
from tightfit.planning.wishes import Wishes
from tightfit.recipe import Recipe
from tightfit.units import format_bytes, format_seconds

Say = Callable[[str], None]


@dataclass(frozen=True)
class Kept:
    """A recipe that keeps to the budget, and the time it was said to take."""

    recipe: Recipe
    seconds_per_step: float


def keep_to(budget: Budget, job: Job, wishes: Wishes, say: Say, *, planned: Recipe | None = None) -> Kept:
    """A recipe that was planned before, if it still fits here, or the best there is; raises DoesNotFit."""
    if budget.note:
        say(budget.note)
    planner = Planner.of(job, budget.device)
    try:
        option = planner.option(planned) if planned is not None else None
        if option is not None and option.at_most > budget.size:
            say(f"the plan takes {format_bytes(option.at_most)} here, more than {budget}; planning again")
            option = None
        option = option or planner.plan(budget, wishes).chosen
    finally:
        _tidy_up()
    time = f"about {format_seconds(option.seconds_per_epoch)} an epoch"
    say(f"{budget}: {option.title}, peak {format_bytes(option.peak)}, {time}, result: {option.result.value}")
    return Kept(option.recipe, option.seconds_per_step)


def _tidy_up() -> None:
    """What planning left behind would count against the budget."""
    from tightfit.allocator import give_back_freed_memory

    forget_planners()
    gc.collect()
    give_back_freed_memory()
