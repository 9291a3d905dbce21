"""The recipe of a training run: the baseline or the planned recipe if it fits the budget, else a new plan."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tightfit.activity import PLANNING, activity
from tightfit.device import Budget
from tightfit.messages import Message, msg, name
from tightfit.planning.constraints import Constraints
from tightfit.planning.plan import Option
from tightfit.planning.planner import Planner
from tightfit.planning.selection import Selection
from tightfit.simulation.estimate import Estimate
from tightfit.simulation.job_simulation import Simulation
from tightfit.strategies.recipe import Recipe
from tightfit.system.processes import run_in_fork
from tightfit.timing import step_time_on
from tightfit.units import format_bytes


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

    @property
    def tries_baseline(self) -> bool:
        """Whether the baseline is taken if it fits: without a budget, and with nothing that asks for another recipe."""
        return self.budget.is_auto and not self.constraints.pinned and self.planned is None and self.failed is None

    def baseline(self, estimate: Estimate) -> Selection | None:
        """The baseline, if its estimate fits what the device has free."""
        peak, upper_bound = format_bytes(estimate.peak), estimate.error_band[1]
        if upper_bound > self.budget.size or not estimate.fits_host:
            return None
        free = self.budget.title
        note = msg(
            "No --budget: the baseline (no strategies) is trained, which needs {peak} of {free}", peak=peak, free=free
        )
        return Selection(Recipe(), None, upper_bound, (note,), process_bytes=estimate.overhead)

    def select(self, simulation: Simulation) -> Selection:
        """Select in a forked process, so that planning leaves nothing in memory; raises DoesNotFit."""
        with activity(PLANNING):
            return run_in_fork(self.select_with, Planner(simulation, step_time_on(self.budget.device)))

    def select_with(self, planner: Planner) -> Selection:
        """Select with the estimates of a planner."""
        baseline = planner.option(Recipe()) if self.tries_baseline else None
        if baseline is not None and (selection := self.baseline(baseline.estimate)) is not None:
            return selection
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
            option.recipe,
            option.seconds_per_step,
            option.upper_bound,
            tuple(notes),
            plan.to_json() if plan else None,
            planner.simulation.process_bytes(),
        )

    def _prediction(self, option: Option) -> Message:
        return msg(
            "{budget}: {recipe}, peak {peak}{time}, result: {result}",
            budget=self.budget.title,
            recipe=option.title,
            peak=format_bytes(option.peak),
            time=option.and_time,
            result=name(option.result.value),
        )

    @property
    def _limit(self) -> Budget:
        """The budget, or 10 % less than what failed: a slightly smaller recipe would fail too."""
        return self.budget if self.failed is None else replace(self.budget, size=self.failed * 9 // 10)
