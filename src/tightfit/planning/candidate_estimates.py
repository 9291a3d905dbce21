"""Candidate estimates: memory and time of the recipes of one job on one device, each computed once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tightfit.device import Budget
from tightfit.errors import ModelError, RecipeError
from tightfit.messages import Message
from tightfit.planning.plan import CandidateEstimate, Option
from tightfit.simulation.job_simulation import Simulation, trace_in_parallel
from tightfit.strategies.base import Strategy
from tightfit.strategies.recipe import Recipe
from tightfit.timing import StepTime


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
