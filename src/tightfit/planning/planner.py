"""The planner: estimates the candidate recipes once and then plans for any budget.

A recipe that leaves the result the same is preferred to one that leaves it close, unless the user prefers speed; among
those that fit the budget the fastest is chosen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from tightfit.device import Budget, Device
from tightfit.errors import BadInput, DoesNotFit, RecipeError
from tightfit.job import Job
from tightfit.messages import Message, msg
from tightfit.planning.candidate_estimates import CandidateEstimates
from tightfit.planning.candidates import candidates, offered
from tightfit.planning.constraints import Constraints, Prefer
from tightfit.planning.plan import (
    CandidateEstimate,
    Option,
    Plan,
    reasons_for,
    rejections,
)
from tightfit.planning.ranking import Ranking
from tightfit.planning.suggestions import length_advice, refuse_hopeless, suggestions
from tightfit.simulation.job_simulation import Simulation, modified_times
from tightfit.simulation.process_size import process_size_note
from tightfit.strategies import STRATEGIES
from tightfit.strategies.base import Case, MemoryKind, Result, Stage, Strategy
from tightfit.strategies.recipe import Recipe
from tightfit.timing import StepTime, step_time_on

_LAST_RESORTS = (Stage.SMALL, Stage.SMALLEST)
_DIFFERENT = (Stage.FEWER_PARAMETERS, Stage.FEWER_BITS)


@dataclass
class Planner:
    """Plans for one job on one device."""

    simulation: Simulation
    step_time: StepTime

    @cached_property
    def candidates(self) -> CandidateEstimates:
        """The estimates computed so far."""
        return CandidateEstimates(self.simulation, self.step_time)

    @classmethod
    def of(cls, job: Job, device: Device) -> Planner:
        """The planner for a job, cached while its files and the rates are the same: a busy machine's rates expire."""
        cached, step_time = _cached(job, device, modified_times(job)), step_time_on(device)
        if cached.planner is None or cached.planner.step_time != step_time:
            cached.planner = cls(cached.simulation, step_time)
        return cached.planner

    def plan(self, budget: Budget, constraints: Constraints, take: int | None = None) -> Plan:
        """The fastest recipe that fits with the least effect on the result; raises DoesNotFit with the closest plan.

        Within what the device has free, a budget that nobody gave, it is the baseline if that fits. With `take`, it is
        the alternative of that number. The plan depends only on these arguments, not on earlier calls.
        """
        refuse_hopeless(self.simulation, budget, self._formats(constraints))
        return self._for_one_call(budget)._plan_within(budget, constraints, take)

    def _for_one_call(self, budget: Budget) -> Planner:
        """A planner that shares all estimates, so that nothing is traced twice."""
        call = Planner(self.simulation, self.step_time)
        call.candidates = self.candidates.for_one_call(budget)
        return call

    def _plan_within(self, budget: Budget, constraints: Constraints, take: int | None) -> Plan:
        candidates = self._allowed(budget, constraints)
        ranking = Ranking(self.candidates, budget, constraints.prefer)
        fitting = ranking.fitting(candidates)
        if fitting:
            options = [*self._preferred(budget, constraints), *fitting, *ranking.smaller(candidates, fitting)]
            chosen = options[0] if take is None else _taken(take, options[1:])
            return self._plan(budget, chosen, [option for option in options if option is not chosen], constraints)
        closest = ranking.closest(candidates)
        plan = self._plan(budget, closest, [], constraints, tuple(suggestions(self, closest, budget, constraints)))
        raise DoesNotFit(plan.shortfall, plan)

    def if_allowed(self, result: Result, budget: Budget, constraints: Constraints) -> Option | None:
        """The option that would fit if this stronger effect on the result were allowed."""
        if result.severity <= constraints.allow.severity:
            return None
        allowed = self._allowed(budget, replace(constraints, allow=result))
        fitting = Ranking(self.candidates, budget).fitting(allowed)
        return fitting[0] if fitting and fitting[0].result is result else None

    def option(self, recipe: Recipe) -> Option | None:
        """The memory and time of a recipe; None if it cannot be used with this model on this device."""
        candidate = self.candidates.candidate(recipe)
        return self.candidates.option(candidate) if candidate is not None else None

    def notes(self, budget: Budget) -> tuple[Message, ...]:
        """About the budget, where times are from, and the size of the process."""
        rates = self.step_time.rates
        warnings = tuple(note for note in (budget.warning, rates.warning, rates.source) if note)
        return (*warnings, *process_size_note(self.simulation.setup.device, self.simulation.process_bytes()))

    def rejection(self, recipe: Recipe) -> Message | None:
        """Why a recipe cannot be used; None if it can."""
        return self.candidates.rejection(recipe)

    def _allowed(self, budget: Budget, constraints: Constraints) -> list[CandidateEstimate]:
        """Candidates that the constraints allow; the slowest ones only if nothing else fits the budget."""
        constraints = self._avoiding_what_fails(constraints)
        evaluated = self.candidates.evaluate(self._recipes(Stage.USUAL, constraints))
        # A pinned strategy may have a stronger effect on the result than the constraints allow.
        limit = max(constraints.allow.severity, min((candidate.severity for candidate in evaluated), default=0))
        allowed = [candidate for candidate in evaluated if candidate.severity <= limit]
        for stage in _LAST_RESORTS:
            if Ranking(self.candidates, budget).any_fits(allowed):
                break
            more = self.candidates.evaluate(self._recipes(stage, constraints))
            allowed += [candidate for candidate in more if candidate.severity <= limit and candidate not in allowed]
        for stage in _DIFFERENT if constraints.allow is Result.DIFFERENT else ():
            if not Ranking(self.candidates, budget).any_fits(allowed):
                allowed += self.candidates.evaluate(self._recipes(stage, constraints))
        return self._checked(allowed, constraints)

    def _formats(self, constraints: Constraints) -> list[Recipe]:
        """The recipes that make the weights as small as the constraints allow, whatever else is in them."""
        found = [s for stage in Stage for s in offered(self._case(stage, constraints), constraints)]
        smaller = [s for s in (*constraints.pinned, *found) if MemoryKind.WEIGHTS in s.frees]
        return [Recipe(), *dict.fromkeys(Recipe.of([*_needed_by(strategy), strategy]) for strategy in smaller)]

    def _recipes(self, stage: Stage, constraints: Constraints) -> list[Recipe]:
        return list(candidates(self._case(stage, constraints), constraints))

    def _case(self, stage: Stage, constraints: Constraints) -> Case:
        setup, longest = self.simulation.setup, self.simulation.lengths.longest
        where = setup.device, setup.settings.batch_size, longest, setup.model.depth
        return Case(*where, stage, setup.model.predicts_words, constraints.avoided, constraints.pinned)

    def _avoiding_what_fails(self, constraints: Constraints) -> Constraints:
        """The constraints, without the strategies that every recipe would have and that this model does not support."""
        free = [s for s in offered(self._case(Stage.USUAL, constraints), constraints) if s.costs_nothing]
        # Trace all recipes together with those that test these strategies: if they work, all are needed.
        if any(Recipe((strategy,)) not in self.candidates for strategy in free):
            self.candidates.trace(self._recipes(Stage.USUAL, constraints))
        failing = {s.name for s in free if self.candidates.candidate(Recipe((s,))) is None}
        return replace(constraints, avoided=constraints.avoided | failing)

    def _checked(self, candidates: list[CandidateEstimate], constraints: Constraints) -> list[CandidateEstimate]:
        if not candidates:
            reasons = self.candidates.rejected_with(constraints.pinned)
            reason = next(iter(reasons), msg("--use and --avoid rule out every recipe; drop one of them."))
            raise RecipeError(msg("No recipe is possible: {reason}", reason=reason))
        return candidates

    def _preferred(self, budget: Budget, constraints: Constraints) -> list[Option]:
        """The baseline, if nobody asked for less memory than there is, or for speed, and it fits."""
        baseline = self.option(Recipe())
        is_asked = budget.is_auto and not constraints.pinned and constraints.prefer is Prefer.EXACT
        fits = is_asked and baseline is not None and baseline.fits(budget)
        return [baseline] if fits and baseline is not None else []

    def _plan(
        self,
        budget: Budget,
        chosen: Option,
        others: list[Option],
        constraints: Constraints,
        suggestions: tuple[Message, ...] = (),
    ) -> Plan:
        baseline = self.option(Recipe())
        assert baseline is not None  # a recipe without strategies cannot be rejected
        return Plan(
            job=self.simulation.setup.job,
            budget=budget,
            constraints=constraints,
            baseline=baseline,
            chosen=chosen,
            reason_details=tuple(reasons_for(chosen, baseline, self._evaluated)),
            alternatives=tuple(others),
            rejected=tuple(self._rejections(chosen, budget, constraints)),
            length_advice=tuple(length_advice(self, chosen)),
            suggestions=suggestions,
            notes=self.notes(budget),
        )

    def _rejections(self, chosen: Option, budget: Budget, constraints: Constraints) -> Iterable[Message]:
        fewer = offered(self._case(Stage.FEWER_PARAMETERS, Constraints()), Constraints())
        names = dict.fromkeys(strategy.name for strategy in fewer if strategy.result is Result.DIFFERENT)
        return rejections(self.candidates.rejected, chosen.recipe, budget.device, constraints, names)

    def _evaluated(self, recipe: Recipe) -> Option | None:
        """The option of a recipe that was among the candidates, else None."""
        return self.option(recipe) if recipe in self.candidates.evaluated else None


def _needed_by(strategy: Strategy) -> list[Strategy]:
    return [STRATEGIES[strategy.needs]()] if strategy.needs is not None else []


def _taken(number: int, alternatives: list[Option]) -> Option:
    if 1 <= number <= len(alternatives):
        return alternatives[number - 1]
    count = len(alternatives)
    if not count:
        raise BadInput(msg("--take {number} is not possible: this plan has no alternatives.", number=number))
    raise BadInput(
        msg("--take {number} is not one of the plan's alternatives: give 1 to {count}.", number=number, count=count)
    )


@dataclass
class _Cached:
    """The traces of a job, and the planner that used them last."""

    simulation: Simulation
    planner: Planner | None = None


@lru_cache(maxsize=4)
def _cached(job: Job, device: Device, stamp: tuple[int, ...]) -> _Cached:
    simulation = Simulation.of(job, device)  # the one that estimates of this job use
    simulation.process_bytes()  # before calibration, which imports packages that training does not need
    return _Cached(simulation)
