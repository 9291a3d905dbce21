"""Drafts: what is known of every recipe that was looked at, each worked out once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial

from tightfit.device import Budget, Device
from tightfit.errors import DoesNotFit, RecipeError
from tightfit.job import Job
from tightfit.planning.candidates import candidates, different, last_resorts
from tightfit.planning.constraints import Constraints
from tightfit.planning.plan import CandidateEstimate, Option, Plan, length_advice, reasons_for, rejections, suggestions
from tightfit.simulation.process_size import process_size_note
from tightfit.simulation.simulation import Simulation, stamp_of, trace_in_parallel
from tightfit.strategies.base import Result, Strategy
from tightfit.strategies.recipe import Recipe
from tightfit.timing import StepTime, step_time_on


@dataclass
class CandidateEstimates:
    """Recipes of one job on one device."""

    simulation: Simulation
    clock: StepTime
    looked_at: dict[Recipe, str | None] = field(default_factory=dict)
    """What was asked for, in this order: why it cannot be used with this model, on this device; None if it can."""
    _candidates: dict[Recipe, CandidateEstimate | None] = field(default_factory=dict)
    _refusals: dict[Recipe, str] = field(default_factory=dict)
    _options: dict[Recipe, Option] = field(default_factory=dict)
    _passes: dict[Recipe, float] = field(default_factory=dict)

    def __contains__(self, recipe: Recipe) -> bool:
        return recipe in self._candidates

    def for_one_call(self) -> CandidateEstimates:
        """The same results, shared, but nothing asked for yet: what earlier calls asked for is not this call's."""
        return replace(self, looked_at={})

    @property
    def rejected(self) -> list[str]:
        """Why recipes that were asked for cannot be used."""
        return [reason for reason in self.looked_at.values() if reason is not None]

    def refused_with(self, pinned: Iterable[Strategy]) -> list[str]:
        """The same for recipes that have these strategies: others are tried too, to see what the model can do."""
        wanted = set(pinned)
        return [
            reason_details
            for recipe, reason_details in self.looked_at.items()
            if reason_details is not None and wanted <= set(recipe.strategies)
        ]

    def rejection(self, recipe: Recipe) -> str | None:
        """Why a recipe cannot be used, whoever asked for it."""
        return self._refusals.get(recipe)

    def evaluate(self, recipes: Iterable[Recipe]) -> list[CandidateEstimate]:
        """Those of them that can be used."""
        recipes = list(dict.fromkeys(recipes))
        self.trace_training(recipes)
        found = [self.candidate(recipe) for recipe in recipes]
        return [candidate for candidate in found if candidate is not None]

    def trace_training(self, recipes: Iterable[Recipe]) -> None:
        """Side by side what will be looked at."""
        trace_in_parallel(self.simulation, [recipe for recipe in (Recipe(), *recipes) if recipe not in self])

    def candidate(self, recipe: Recipe) -> CandidateEstimate | None:
        """None if it cannot be used."""
        if recipe not in self._candidates:
            self._candidates[recipe] = self._rehearse(recipe)
        self.looked_at.setdefault(recipe, self.rejection(recipe))
        return self._candidates[recipe]

    def option(self, candidate: CandidateEstimate) -> Option:
        """With its whole bill."""
        if candidate.recipe not in self._options:
            self._options[candidate.recipe] = Option(
                recipe=candidate.recipe,
                estimate=self.simulation.estimate(candidate.recipe),
                seconds_per_step=candidate.seconds_per_step,
                steps_per_epoch=self.simulation.lengths.per_epoch,
            )
        return self._options[candidate.recipe]

    def _rehearse(self, recipe: Recipe) -> CandidateEstimate | None:
        try:
            at_least = self.simulation.at_least(recipe)
        except RecipeError as error:
            self._refusals[recipe] = str(error)
            return None
        seconds = self._pass_seconds(recipe) + self._update_seconds(recipe)
        return CandidateEstimate(recipe=recipe, seconds_per_step=seconds, at_least=at_least)

    def _pass_seconds(self, recipe: Recipe) -> float:
        """Whatever the optimizer, the pass is the same, unless it steps inside: then its own trace tells."""
        in_backward = any(strategy.steps_in_backward for strategy in recipe.strategies)
        passing = recipe if in_backward else recipe.gradient_part()
        if passing not in self._passes:
            traced, parts = self.simulation.traced(passing)
            self._passes[passing] = self.clock.forward_backward_seconds(traced, parts, self.simulation.lengths)
        return self._passes[passing]

    def _update_seconds(self, recipe: Recipe) -> float:
        traced, _ = self.simulation.traced(recipe)
        return self.clock.optimizer_seconds(traced, recipe.optimizer)


# The planner: looks at the candidates once and then answers for any budget.
#
# A recipe that leaves the result equal is preferred to one that leaves it close, and among those that keep to the
# budget the fastest is taken.


_ORDER = list(Result)
_ALTERNATIVES = 5
_ATTENTION = Recipe.parse(["tiled-attention"])


@dataclass
class Planner:
    """A job on a device, with all that is known of its recipes."""

    simulation: Simulation
    clock: StepTime

    @cached_property
    def candidates(self) -> CandidateEstimates:
        """All that was looked at so far."""
        return CandidateEstimates(self.simulation, self.clock)

    @classmethod
    def of(cls, job: Job, device: Device) -> Planner:
        """For the same job and file only once."""
        return _planner(job, device, stamp_of(job))

    def plan(self, budget: Budget, constraints: Constraints) -> Plan:
        """The fastest of the gentlest recipes that fit; DoesNotFit, with the closest plan, where none does.

        The same for the same budget and wishes, whatever was planned before.
        """
        return self._for_one_call()._plan_within(budget, constraints)

    def _for_one_call(self) -> Planner:
        """What it worked out before is shared, so that nothing is played twice."""
        call = Planner(self.simulation, self.clock)
        call.candidates = self.candidates.for_one_call()
        return call

    def _plan_within(self, budget: Budget, constraints: Constraints) -> Plan:
        candidates = self._allowed(budget, constraints)
        fitting = self._fitting(candidates, budget)
        if fitting:
            return self._plan(
                budget, fitting[0], [*fitting[1:], *self._smaller(candidates, fitting, budget)], constraints
            )
        closest = self._closest(candidates)
        plan = self._plan(budget, closest, [], constraints, tuple(suggestions(self, closest, budget, constraints)))
        raise DoesNotFit(plan.shortfall, plan)

    def if_allowed(self, result: Result, budget: Budget, constraints: Constraints) -> Option | None:
        """What would fit, and does so to the result, where that is more than the wishes allow."""
        if _ORDER.index(result) <= _ORDER.index(constraints.allow):
            return None
        fitting = self._fitting(self._allowed(budget, replace(constraints, allow=result)), budget)
        return fitting[0] if fitting and fitting[0].result is result else None

    def option(self, recipe: Recipe) -> Option | None:
        """What a recipe takes; None if it cannot be used with this model, on this device."""
        candidate = self.candidates.candidate(recipe)
        return self.candidates.option(candidate) if candidate is not None else None

    def notes(self, budget: Budget) -> tuple[str, ...]:
        """What is odd about the budget, and about the machine's rates; why the process is as large as it is."""
        odd = tuple(note for note in (budget.note, self.clock.rates.note) if note)
        return (*odd, *process_size_note(self.simulation.setup.device, self.simulation.weigh()))

    def rejection(self, recipe: Recipe) -> str | None:
        """Why a recipe that was asked for cannot be used."""
        return self.candidates.rejection(recipe)

    def _allowed(self, budget: Budget, constraints: Constraints) -> list[CandidateEstimate]:
        """All that may be taken; the slowest ways only where nothing else keeps to the budget."""
        device, batch = self.simulation.setup.device, self.simulation.setup.job.batch_size
        offered = partial(candidates, device, batch, constraints, longest=self.simulation.lengths.longest)
        if (
            self._may_take_attention(constraints) and _ATTENTION not in self.candidates
        ):  # if it works, all of these are wanted
            self.candidates.trace_training(offered(attention=True))
        attention = self._attention_works(constraints)
        looked = self.candidates.evaluate(offered(attention=attention))
        harshest = max(
            _ORDER.index(constraints.allow), min(map(_rank, looked), default=0)
        )  # what is pinned may be harsher
        allowed = [candidate for candidate in looked if _rank(candidate) <= harshest]
        for resort in last_resorts(device, batch, constraints, attention=attention):
            if self._any_fits(allowed, budget):
                break
            allowed += [candidate for candidate in self.candidates.evaluate(resort) if _rank(candidate) <= harshest]
        if constraints.allow is Result.DIFFERENT and not self._any_fits(allowed, budget):
            allowed += self.candidates.evaluate(self._different(constraints))
        return self._checked(allowed, constraints)

    def _checked(self, candidates: list[CandidateEstimate], constraints: Constraints) -> list[CandidateEstimate]:
        if not candidates:
            reasons = self.candidates.refused_with(constraints.pinned)
            reason = next(iter(reasons), "what is pinned and what is avoided leave no recipe")
            raise RecipeError(f"No recipe can be made: {reason}")
        return candidates

    def _fitting(self, candidates: Iterable[CandidateEstimate], budget: Budget) -> list[Option]:
        """The best few. Neither other sizes of the same strategies nor what takes as long are alternatives."""
        best: list[CandidateEstimate] = []
        for candidate in sorted(candidates, key=lambda candidate: (_rank(candidate), candidate.seconds_per_step)):
            if not any(candidate.is_like(other) for other in best) and self._fits(candidate, budget):
                best.append(candidate)
            if len(best) > _ALTERNATIVES:
                break
        return [self.candidates.option(candidate) for candidate in best]

    def _smaller(self, candidates: Iterable[CandidateEstimate], shown: list[Option], budget: Budget) -> list[Option]:
        """The smallest of all, where that is none of those that are shown."""
        smallest = self.candidates.option(min(candidates, key=lambda candidate: candidate.at_least))
        return [smallest] if smallest.peak < min(o.peak for o in shown) and smallest.keeps_to(budget) else []

    def _closest(self, candidates: Iterable[CandidateEstimate]) -> Option:
        """The smallest, its margin included; of most drafts the least they take tells that they are not it."""
        closest: Option | None = None
        for candidate in sorted(candidates, key=lambda candidate: candidate.at_least):
            if closest is not None and candidate.at_least >= closest.at_most:
                break
            option = self.candidates.option(candidate)
            closest = option if closest is None or option.at_most < closest.at_most else closest
        assert closest is not None  # there is always a draft
        return closest

    def _any_fits(self, candidates: Iterable[CandidateEstimate], budget: Budget) -> bool:
        return any(
            self._fits(candidate, budget) for candidate in sorted(candidates, key=lambda candidate: candidate.at_least)
        )

    def _fits(self, candidate: CandidateEstimate, budget: Budget) -> bool:
        return candidate.at_least <= budget.size and self.candidates.option(candidate).keeps_to(budget)

    def _different(self, constraints: Constraints) -> Iterable[Recipe]:
        setup = self.simulation.setup
        return different(setup.depth, setup.job.batch_size, constraints, attention=self._attention_works(constraints))

    def _attention_works(self, constraints: Constraints) -> bool:
        """Wherever the model lets itself be changed."""
        return self._may_take_attention(constraints) and self.candidates.candidate(_ATTENTION) is not None

    def _may_take_attention(self, constraints: Constraints) -> bool:
        """It is worth taking on a processor; cards do it by themselves."""
        return self.simulation.setup.device.kind == "cpu" and "tiled-attention" not in constraints.avoided

    def _plan(
        self, budget: Budget, chosen: Option, others: list[Option], constraints: Constraints, ways: tuple[str, ...] = ()
    ) -> Plan:
        baseline = self.option(Recipe())
        assert baseline is not None  # no strategy, so nothing that could be refused
        return Plan(
            job=self.simulation.setup.job,
            budget=budget,
            constraints=constraints,
            baseline=baseline,
            chosen=chosen,
            reason_details=tuple(reasons_for(chosen, baseline, self._looked_at)),
            alternatives=tuple(others),
            rejected=tuple(rejections(self.candidates.rejected, chosen.recipe, budget.device, constraints)),
            advice=tuple(length_advice(self, chosen)),
            suggestions=ways,
            notes=self.notes(budget),
        )

    def _looked_at(self, recipe: Recipe) -> Option | None:
        """What is known of a recipe, if it was among the candidates."""
        return self.option(recipe) if recipe in self.candidates.looked_at else None


def _rank(candidate: CandidateEstimate) -> int:
    return _ORDER.index(candidate.recipe.result)


@lru_cache(maxsize=4)
def _planner(job: Job, device: Device, stamp: tuple[int, ...]) -> Planner:
    known = Simulation.of(job, device)
    simulation = Simulation(known.setup, known.lengths, always_padded=True)
    simulation.weigh()  # before the clock is made: what measuring imports is in no training
    return Planner(simulation, step_time_on(device))
