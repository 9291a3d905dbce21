"""Ways out: what would make a training fit, the gentlest change first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tightfit.budget import Budget
from tightfit.planning.advice import cutting
from tightfit.planning.plans import Option
from tightfit.planning.wishes import Wishes
from tightfit.recipe import Recipe
from tightfit.strategy import Result
from tightfit.units import format_bytes

if TYPE_CHECKING:
    from tightfit.planning.planner import Planner

_MIB = 1 << 20
_IN_REACH = 1.25  # times the budget: shorter texts do not bring more, and looking takes seconds
_SMALLER = {"xlarge": "large", "large": "base"}  # sizes that families usually have


def ways_out(planner: Planner, closest: Option, budget: Budget, wishes: Wishes) -> Iterator[str]:
    """A larger budget, other wishes, more that may be done to the result, shorter texts, a smaller model."""
    needed = -(-closest.at_most // _MIB)
    yield f"--budget {needed}MB: what the smallest recipe that is allowed takes ({closest.title})"
    if wishes.avoided or wishes.pinned:
        yield "drop --use and --avoid: what they rule out may be what fits"
    for result in (Result.CLOSE, Result.DIFFERENT):
        best = planner.if_allowed(result, budget, wishes)
        if best is not None:
            yield f"--allow {result.value}: {best.title} would fit, with {format_bytes(best.peak)}"
    yield from _shorter_texts(planner, closest, budget)
    yield from _smaller_model(planner.rehearsal.company.job.model.rstrip("/").rpartition("/")[2])


def _shorter_texts(planner: Planner, closest: Option, budget: Budget) -> Iterator[str]:
    tokens = planner.rehearsal.lengths.longest // 2
    cut = any(strategy.name == "max-length" for strategy in closest.recipe.strategies)
    if cut or tokens < 2 or closest.at_most > _IN_REACH * budget.size:
        return
    option = planner.option(Recipe.parse([*closest.recipe.words, f"max-length:tokens={tokens}"]))
    if option is not None and option.keeps_to(budget):
        would = f"{closest.title} would fit, with {format_bytes(option.peak)}"
        yield f"--max-length {tokens}: {cutting(planner, tokens)}; {would}"


def _smaller_model(name: str) -> Iterator[str]:
    larger = next((word for word in _SMALLER if word in name.lower()), None)
    if larger:
        yield f"a smaller model of the family: {name.lower().replace(larger, _SMALLER[larger])}, if there is one"
