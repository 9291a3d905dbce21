"""The planner: estimates the candidate recipes once and then plans for any budget.

A recipe that leaves the result the same is preferred to one that leaves it close; among those that fit the budget the
fastest is chosen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from tightfit.device import Budget, Device
from tightfit.errors import BadInput, DoesNotFit, ModelError, RecipeError
from tightfit.job import Job
from tightfit.messages import Message, msg
from tightfit.planning.candidates import candidates, offered
from tightfit.planning.constraints import Constraints
from tightfit.planning.plan import (
    CandidateEstimate,
    Option,
    Plan,
    reasons_for,
    rejections,
)
from tightfit.planning.suggestions import length_advice, refuse_hopeless, suggestions
from tightfit.simulation.job_simulation import Simulation, modified_times, trace_in_parallel
from tightfit.simulation.process_size import process_size_note
from tightfit.strategies.base import Case, MemoryKind, Result, Stage, Strategy
from tightfit.strategies.recipe import Recipe
from tightfit.timing import StepTime, step_time_on


@dataclass
class CandidateEstimates:
    """Memory and time of the recipes of one job on one device, each computed once."""

    simulation: Simulation
    step_time: StepTime
    evaluated: dict[Recipe, Message | None] = field(default_factory=dict)
    """Evaluated recipes in order, each with the reason why this model or device rules it out, or None."""
    memory: int | None = None
    """Bytes that tracing may take in all its processes: a budget for this machine's memory holds for planning too."""
    _candidates: dict[Recipe, CandidateEstimate | None] = field(default_factory=dict)
    _rejections: dict[Recipe, Message] = field(default_factory=dict)
    _options: dict[Recipe, Option] = field(default_factory=dict)
    _pass_seconds: dict[Recipe, float] = field(default_factory=dict)

    def __contains__(self, recipe: Recipe) -> bool:
        return recipe in self._candidates

    def for_one_call(self, budget: Budget) -> CandidateEstimates:
        """A copy that shares all results but lists none as evaluated, so that earlier calls do not affect this one."""
        return replace(self, evaluated={}, memory=budget.size if budget.device.kind == "cpu" else None)

    @property
    def rejected(self) -> list[Message]:
        """Why evaluated recipes cannot be used."""
        return [reason for reason in self.evaluated.values() if reason is not None]

    def rejected_with(self, pinned: Iterable[Strategy]) -> list[Message]:
        """Why recipes with all of these strategies cannot be used; others are evaluated only to probe the model."""
        wanted = set(pinned)
        return [
            reason
            for recipe, reason in self.evaluated.items()
            if reason is not None and wanted <= set(recipe.strategies)
        ]

    def rejection(self, recipe: Recipe) -> Message | None:
        """Why a recipe cannot be used, in this call or an earlier one."""
        return self._rejections.get(recipe)

    def evaluate(self, recipes: Iterable[Recipe]) -> list[CandidateEstimate]:
        """Estimates of the recipes that can be used."""
        recipes = list(dict.fromkeys(recipes))
        self.trace(recipes)
        found = [self.candidate(recipe) for recipe in recipes]
        return [candidate for candidate in found if candidate is not None]

    def trace(self, recipes: Iterable[Recipe]) -> None:
        """Trace in parallel the recipes that are about to be evaluated."""
        unknown = [recipe for recipe in (Recipe(), *recipes) if recipe not in self]
        trace_in_parallel(self.simulation, unknown, self.memory)

    def candidate(self, recipe: Recipe) -> CandidateEstimate | None:
        """The estimate of one recipe; None if it cannot be used."""
        if recipe not in self._candidates:
            self._candidates[recipe] = self._estimate(recipe)
        self.evaluated.setdefault(recipe, self.rejection(recipe))
        return self._candidates[recipe]

    def option(self, candidate: CandidateEstimate) -> Option:
        """The candidate with its complete memory estimate."""
        if candidate.recipe not in self._options:
            self._options[candidate.recipe] = Option(
                recipe=candidate.recipe,
                estimate=self.simulation.estimate(candidate.recipe),
                seconds_per_step=None if self.step_time.rates.ranking_only else candidate.seconds_per_step,
                steps_per_epoch=self.simulation.lengths.per_epoch,
            )
        return self._options[candidate.recipe]

    def _estimate(self, recipe: Recipe) -> CandidateEstimate | None:
        try:
            lower_bound = self.simulation.lower_bound(recipe)
        except (RecipeError, ModelError) as error:
            if isinstance(error, ModelError) and not recipe.strategies:  # no recipe can be simulated
                raise
            self._rejections[recipe] = error.message
            return None
        seconds = self._forward_backward_seconds(recipe) + self._optimizer_seconds(recipe)
        return CandidateEstimate(recipe=recipe, seconds_per_step=seconds, lower_bound=lower_bound)

    def _forward_backward_seconds(self, recipe: Recipe) -> float:
        """The same for every optimizer, unless it steps during backward: then the recipe is traced as a whole."""
        part = recipe if recipe.steps_in_backward else recipe.gradient_part()
        if part not in self._pass_seconds:
            traced, parts = self.simulation.traced(part)
            self._pass_seconds[part] = self.step_time.forward_backward_seconds(traced, parts, self.simulation.lengths)
        return self._pass_seconds[part]

    def _optimizer_seconds(self, recipe: Recipe) -> float:
        traced, _ = self.simulation.traced(recipe)
        return self.step_time.optimizer_seconds(traced, recipe.optimizer)


_ORDER = list(Result)
_ALTERNATIVES = 5
_LAST_RESORTS = (Stage.SMALL, Stage.SMALLEST)


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
        fitting = self._fitting(candidates, budget)
        if fitting:
            options = [*self._preferred(budget, constraints), *fitting, *self._smaller(candidates, fitting, budget)]
            chosen = options[0] if take is None else _taken(take, options[1:])
            return self._plan(budget, chosen, [option for option in options if option is not chosen], constraints)
        closest = self._closest(candidates)
        plan = self._plan(budget, closest, [], constraints, tuple(suggestions(self, closest, budget, constraints)))
        raise DoesNotFit(plan.shortfall, plan)

    def if_allowed(self, result: Result, budget: Budget, constraints: Constraints) -> Option | None:
        """The option that would fit if this stronger effect on the result were allowed."""
        if _ORDER.index(result) <= _ORDER.index(constraints.allow):
            return None
        fitting = self._fitting(self._allowed(budget, replace(constraints, allow=result)), budget)
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
        limit = max(_ORDER.index(constraints.allow), min(map(_severity, evaluated), default=0))
        allowed = [candidate for candidate in evaluated if _severity(candidate) <= limit]
        for stage in _LAST_RESORTS:
            if self._any_fits(allowed, budget):
                break
            more = self.candidates.evaluate(self._recipes(stage, constraints))
            allowed += [candidate for candidate in more if _severity(candidate) <= limit and candidate not in allowed]
        if constraints.allow is Result.DIFFERENT and not self._any_fits(allowed, budget):
            allowed += self.candidates.evaluate(self._recipes(Stage.FEWER_PARAMETERS, constraints))
        return self._checked(allowed, constraints)

    def _formats(self, constraints: Constraints) -> list[Recipe]:
        """The recipes that make the weights as small as the constraints allow, whatever else is in them."""
        found = [s for stage in Stage for s in offered(self._case(stage, constraints), constraints)]
        smaller = [s for s in (*constraints.pinned, *found) if MemoryKind.WEIGHTS in s.frees]
        return [Recipe(), *dict.fromkeys(Recipe((strategy,)) for strategy in smaller)]

    def _recipes(self, stage: Stage, constraints: Constraints) -> list[Recipe]:
        return list(candidates(self._case(stage, constraints), constraints))

    def _case(self, stage: Stage, constraints: Constraints) -> Case:
        setup, longest = self.simulation.setup, self.simulation.lengths.longest
        where = setup.device, setup.settings.batch_size, longest, setup.model.depth
        return Case(*where, stage, constraints.avoided, constraints.pinned)

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

    def _fitting(self, candidates: Iterable[CandidateEstimate], budget: Budget) -> list[Option]:
        """The best few options; skips other settings of the same strategies and recipes that take about as long."""
        best: list[CandidateEstimate] = []
        for candidate in sorted(candidates, key=lambda candidate: (_severity(candidate), candidate.seconds_per_step)):
            if not any(candidate.is_similar(other) for other in best) and self._fits(candidate, budget):
                best.append(candidate)
            if len(best) > _ALTERNATIVES:
                break
        return [self.candidates.option(candidate) for candidate in best]

    def _preferred(self, budget: Budget, constraints: Constraints) -> list[Option]:
        """The baseline, if nobody asked for less memory than there is and it fits."""
        baseline = self.option(Recipe())
        fits = budget.is_auto and not constraints.pinned and baseline is not None and baseline.fits(budget)
        return [baseline] if fits and baseline is not None else []

    def _smaller(self, candidates: Iterable[CandidateEstimate], shown: list[Option], budget: Budget) -> list[Option]:
        """The smallest option, if it fits and is not among the shown ones."""
        smallest = self.candidates.option(min(candidates, key=lambda candidate: candidate.lower_bound))
        return [smallest] if smallest.peak < min(o.peak for o in shown) and smallest.fits(budget) else []

    def _closest(self, candidates: Iterable[CandidateEstimate]) -> Option:
        """The option with the smallest upper bound; lower bounds rule out most candidates without a full estimate."""
        closest: Option | None = None
        for candidate in sorted(candidates, key=lambda candidate: candidate.lower_bound):
            if closest is not None and candidate.lower_bound >= closest.upper_bound:
                break
            option = self.candidates.option(candidate)
            closest = option if closest is None or option.upper_bound < closest.upper_bound else closest
        assert closest is not None  # there is at least one candidate
        return closest

    def _any_fits(self, candidates: Iterable[CandidateEstimate], budget: Budget) -> bool:
        smallest_first = sorted(candidates, key=lambda candidate: candidate.lower_bound)
        return any(self._fits(candidate, budget) for candidate in smallest_first)

    def _fits(self, candidate: CandidateEstimate, budget: Budget) -> bool:
        return candidate.lower_bound <= budget.size and self.candidates.option(candidate).fits(budget)

    def _plan(
        self,
        budget: Budget,
        chosen: Option,
        others: list[Option],
        constraints: Constraints,
        suggestions: tuple[Message, ...] = (),
    ) -> Plan:
        baseline = self.option(Recipe())
        job = self.simulation.setup.job
        assert baseline is not None  # a recipe without strategies cannot be rejected
        assert job is not None  # plans are made for jobs
        return Plan(
            job=job,
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


def _taken(number: int, alternatives: list[Option]) -> Option:
    if 1 <= number <= len(alternatives):
        return alternatives[number - 1]
    count = len(alternatives)
    if not count:
        raise BadInput(msg("--take {number} is not possible: this plan has no alternatives.", number=number))
    raise BadInput(
        msg("--take {number} is not one of the plan's alternatives: give 1 to {count}.", number=number, count=count)
    )


def _severity(candidate: CandidateEstimate) -> int:
    return _ORDER.index(candidate.recipe.result)


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
