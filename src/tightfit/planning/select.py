"""Recipe selection for training: the planned recipe if it still fits the budget, else a new plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tightfit.device import Budget
from tightfit.messages import Message, msg, name
from tightfit.planning.constraints import Constraints
from tightfit.planning.plan import Option
from tightfit.planning.planner import Planner
from tightfit.processes import run_in_fork
from tightfit.simulation.job_simulation import Simulation, SimulationSetup
from tightfit.simulation.worst_case import Lengths
from tightfit.strategies.recipe import Recipe
from tightfit.timing import step_time_on
from tightfit.units import format_bytes, format_seconds


@dataclass(frozen=True)
class Selection:
    """A recipe that fits the budget, with its predicted time and memory."""

    recipe: Recipe
    seconds_per_step: float
    upper_bound: int
    """Predicted peak in bytes, margin included."""
    notes: tuple[Message, ...]
    plan: dict[str, Any] | None = None
    """The new plan as JSON values; None if an earlier plan was used."""


@dataclass(frozen=True)
class Selector:
    """Selects the recipe of a training run within a budget and constraints."""

    budget: Budget
    constraints: Constraints
    planned: Recipe | None = None
    """The recipe of an earlier plan, used unchanged if it still fits."""
    failed: int | None = None
    """Predicted bytes of a recipe that failed its pre-flight."""

    def excluding(self, selection: Selection) -> Selector:
        """A selector for a smaller recipe, after this selection failed its pre-flight."""
        return replace(self, planned=None, failed=selection.upper_bound)

    def select(self, setup: SimulationSetup, lengths: Lengths) -> Selection:
        """Select in a forked process, so that planning leaves nothing in memory; raises DoesNotFit."""
        step_time, overhead = step_time_on(self.budget.device), setup.process_bytes()
        planner = Planner(Simulation(setup, lengths, assume_padding=True, overhead=overhead), step_time)
        return run_in_fork(self._select, planner)

    def _select(self, planner: Planner) -> Selection:
        notes = list(planner.notes(self.budget))
        option = planner.option(self.planned) if self.planned is not None else None
        if self.planned is not None and option is None:
            reason = planner.rejection(self.planned)
            notes.append(msg("the plan cannot run here ({reason}): planned again", reason=reason))
        if option is not None and not option.fits(self.budget):
            notes.append(
                msg(
                    "the plan needs {needed} here, more than {budget}: planned again",
                    needed=format_bytes(option.upper_bound),
                    budget=self.budget.title,
                )
            )
            option = None
        plan = planner.plan(self._limit, self.constraints) if option is None else None
        option = plan.chosen if plan is not None else option
        assert option is not None
        notes.append(self._prediction(option))
        return Selection(
            option.recipe, option.seconds_per_step, option.upper_bound, tuple(notes), plan.to_json() if plan else None
        )

    def _prediction(self, option: Option) -> Message:
        return msg(
            "{budget}: {recipe}, peak {peak}, about {time} per epoch, result: {result}",
            budget=self.budget.title,
            recipe=option.title,
            peak=format_bytes(option.peak),
            time=format_seconds(option.seconds_per_epoch),
            result=name(option.result.value),
        )

    @property
    def _limit(self) -> Budget:
        """The budget, or 10 % less than what failed: a slightly smaller recipe would fail too."""
        return self.budget if self.failed is None else replace(self.budget, size=self.failed * 9 // 10)
