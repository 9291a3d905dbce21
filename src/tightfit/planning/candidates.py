"""Candidate recipes: every combination of what the strategies offer that is worth estimating.

A candidate makes one choice for each part of the training that strategies set: the micro-batch, the recomputation, the
optimizer and so on. Strategies say themselves which of their settings are worth trying (`Strategy.offers`) and with
which others (`Strategy.suits`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby, product

from tightfit.errors import RecipeError
from tightfit.planning.constraints import Constraints
from tightfit.strategies import STRATEGIES
from tightfit.strategies.base import Case, Result, Stage, Strategy
from tightfit.strategies.recipe import Recipe

Choice = tuple[Strategy, ...]
"""One strategy, or none."""


def candidates(case: Case, constraints: Constraints) -> Iterator[Recipe]:
    """The recipes of the case's stage that the constraints allow."""
    case = replace(case, offered=tuple(offered(case, constraints)))
    seen = set()
    for choices in product(*_choices(case)):
        chosen = tuple(strategy for choice in choices for strategy in choice)
        recipe = _recipe(chosen, constraints) if _is_worth_trying(chosen, case) else None
        if recipe is not None and recipe not in seen:
            seen.add(recipe)
            yield recipe


def offered(case: Case, constraints: Constraints) -> Iterator[Strategy]:
    """What the strategies that can be used offer, without what the user avoids."""
    for kind in STRATEGIES.values():
        if kind.is_available():
            yield from (strategy for strategy in kind.offers(case) if not constraints.avoids(strategy))


def _choices(case: Case) -> Iterator[list[Choice]]:
    """For each part of the training, the strategies that may set it; or none, unless every recipe needs one."""
    parts = sorted(case.offered, key=_part)
    for _, group in groupby(parts, _part):
        strategies: list[Choice] = [(strategy,) for strategy in group]
        yield strategies if _is_needed(strategies[0][0], case) else [(), *strategies]


def _part(strategy: Strategy) -> str:
    return strategy.exclusive or strategy.name


def _is_needed(strategy: Strategy, case: Case) -> bool:
    """Whether every recipe has it: where fewer parameters train, all that leaves the result the same is used first."""
    return strategy.costs_nothing or (case.stage >= Stage.FEWER_PARAMETERS and strategy.result is Result.SAME)


def _is_worth_trying(chosen: Sequence[Strategy], case: Case) -> bool:
    if case.stage >= Stage.FEWER_PARAMETERS and not any(s.result is Result.DIFFERENT for s in chosen):
        return False
    return all(strategy.suits([other for other in chosen if other is not strategy], case) for strategy in chosen)


def _recipe(chosen: Sequence[Strategy], constraints: Constraints) -> Recipe | None:
    """The chosen and the pinned strategies as a recipe; None if they clash."""
    allowed = [strategy for strategy in chosen if constraints.allows(strategy)]
    try:
        return Recipe.of([*allowed, *constraints.pinned])
    except RecipeError:
        return None
