"""Keeping to a budget: the recipe that a training under one takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tightfit.device import Budget
from tightfit.planning.constraints import Constraints
from tightfit.planning.planner import Planner
from tightfit.processes import run_in_fork
from tightfit.simulation.simulation import Simulation, SimulationSetup
from tightfit.simulation.worst_case import Lengths
from tightfit.strategies.recipe import Recipe
from tightfit.timing import step_time_on
from tightfit.units import format_bytes, format_seconds


@dataclass(frozen=True)
class Selection:
    """A recipe that keeps to the budget, and the time and memory it was said to take."""

    recipe: Recipe
    seconds_per_step: float
    at_most: int
    """Bytes, with the margin."""
    notes: tuple[str, ...]
    plan: dict[str, Any] | None = None
    """The plan it is of, for scripts; None where a recipe was planned before."""


@dataclass(frozen=True)
class Selector:
    """What a training has to keep to."""

    budget: Budget
    constraints: Constraints
    planned: Recipe | None = None
    """What was planned before, to be taken as it is where it still fits."""
    failed: int | None = None
    """What a recipe was said to take that then did not pass its pre-flight."""

    def below(self, selection: Selection) -> Selector:
        """The same, after a recipe has failed."""
        return replace(self, planned=None, failed=selection.at_most)

    def choose(self, setup: SimulationSetup, lengths: Lengths) -> Selection:
        """The recipe; raises DoesNotFit. What it leaves in memory would count against the budget, so it leaves none."""
        clock, overhead = step_time_on(self.budget.device), setup.overhead()
        planner = Planner(Simulation(setup, lengths, always_padded=True, overhead=overhead), clock)
        return run_in_fork(self._choose, planner)

    def _choose(self, planner: Planner) -> Selection:
        notes = list(planner.notes(self.budget))
        option = planner.option(self.planned) if self.planned is not None else None
        if self.planned is not None and option is None:
            notes.append(f"the plan cannot be carried out here ({planner.rejection(self.planned)}): planned again")
        if option is not None and not option.keeps_to(self.budget):
            notes.append(f"the plan takes {format_bytes(option.at_most)} here, more than {self.budget}: planned again")
            option = None
        plan = planner.plan(self._limit, self.constraints) if option is None else None
        option = plan.chosen if plan is not None else option
        assert option is not None
        time = f"about {format_seconds(option.seconds_per_epoch)} an epoch"
        about = f"peak {format_bytes(option.peak)}, {time}, result: {option.result.value}"
        notes.append(f"{self.budget}: {option.title}, {about}")
        return Selection(
            option.recipe, option.seconds_per_step, option.at_most, tuple(notes), plan.to_json() if plan else None
        )

    @property
    def _limit(self) -> Budget:
        """The budget, or a tenth less than what failed: a little less would fail as well."""
        return self.budget if self.failed is None else replace(self.budget, size=self.failed * 9 // 10)
