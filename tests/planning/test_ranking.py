"""Ranking: what is chosen, and which faster recipe is shown beside it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tightfit.device import Budget, Device
from tightfit.errors import BadInput
from tightfit.planning.constraints import Constraints, Prefer
from tightfit.planning.plan import CandidateEstimate
from tightfit.planning.ranking import Ranking
from tightfit.strategies.recipe import Recipe

BUDGET = Budget(100, Device("cpu", "CPU", bf16=True, fp16=False))
SAME, CLOSE, SLOWER = "micro-batch:size=8", "mixed-precision", "adafactor"


class Estimates:
    """Every recipe fits if its lower bound does."""

    @staticmethod
    def option(candidate: CandidateEstimate) -> Any:
        return SimpleNamespace(recipe=candidate.recipe, fits=lambda budget: candidate.lower_bound <= budget.size)


def candidate(spec: str, seconds: float, size: int = 50) -> CandidateEstimate:
    return CandidateEstimate(recipe=Recipe.parse(spec.split()), seconds_per_step=seconds, lower_bound=size)


def ranked(prefer: Prefer, *candidates: CandidateEstimate) -> list[str]:
    ranking = Ranking(Estimates(), BUDGET, prefer)  # type: ignore[arg-type]
    return [option.recipe.title for option in ranking.fitting(candidates)]


@pytest.mark.parametrize(("prefer", "chosen"), [(Prefer.EXACT, SAME), (Prefer.SPEED, CLOSE)])
def test_the_preference_decides_between_same_and_a_faster_close_recipe(prefer: Prefer, chosen: str) -> None:
    assert ranked(prefer, candidate(CLOSE, 5), candidate(SAME, 10), candidate(SLOWER, 20))[0] == chosen


def test_a_faster_close_recipe_is_the_first_alternative() -> None:
    others = [candidate(f"micro-batch:size={size} gradient-checkpointing:every={size}", 11 * size) for size in (2, 4)]
    found = ranked(Prefer.EXACT, candidate(SAME, 10), *others, candidate(SLOWER, 9), candidate(CLOSE, 5))
    assert found[:2] == [SAME, CLOSE]
    assert len(found) == len(set(found))


def test_a_close_recipe_that_does_not_fit_or_is_slower_is_not_put_first() -> None:
    middle = candidate("gradient-checkpointing", 15)
    for other in (candidate(CLOSE, 5, size=200), candidate(CLOSE, 20)):
        assert ranked(Prefer.EXACT, candidate(SAME, 10), middle, other)[1] == "gradient-checkpointing"


def test_an_unknown_preference_is_answered_with_the_known_ones() -> None:
    with pytest.raises(BadInput, match=r"--prefer 'fast' is not possible: .*exact.*speed"):
        Constraints.of(prefer="fast")
    assert Constraints.of(prefer="speed").specs["prefer"] == "speed"
