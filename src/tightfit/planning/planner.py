"""The planner: looks at the candidates once and then answers for any budget.

A recipe that leaves the result equal is preferred to one that leaves it close, and among those that keep to the
budget the fastest is taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from tightfit.budget import Budget
from tightfit.clock import Clock, clock_for
from tightfit.device import Device
from tightfit.errors import DoesNotFit, RecipeError
from tightfit.job import Job
from tightfit.planning.advice import length_advice
from tightfit.planning.candidates import candidates, different, last_resorts
from tightfit.planning.plans import Option, Plan
from tightfit.planning.reasons import reasons_for, refusals
from tightfit.planning.ways_out import ways_out
from tightfit.planning.wishes import Wishes
from tightfit.recipe import Recipe
from tightfit.rehearsal.ahead import play_ahead
from tightfit.rehearsal.rehearsal import Rehearsal, stamp_of
from tightfit.strategy import Result

_ORDER = list(Result)
_ALTERNATIVES = 5


@dataclass
class Planner:
    """A job on a device, with all that is known of its recipes."""

    rehearsal: Rehearsal
    clock: Clock
    _known: dict[Recipe, Option | None] = field(default_factory=dict)
    _passes: dict[Recipe, float] = field(default_factory=dict)
    _refused: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, job: Job, device: Device) -> Planner:
        """For the same job and file only once."""
        return _planner(job, device, stamp_of(job))

    def plan(self, budget: Budget, wishes: Wishes) -> Plan:
        """The fastest of the gentlest recipes that fit; DoesNotFit, with the closest plan, where none does."""
        options = self._allowed(budget, wishes)
        fitting = sorted((o for o in options if o.keeps_to(budget)), key=_preference)
        if fitting:
            return self._plan(budget, fitting[0], fitting[1:], wishes)
        closest = min(options, key=lambda option: option.at_most)
        changed = self._look_at(self._different(wishes))
        plan = self._plan(budget, closest, [], wishes, tuple(ways_out(self, budget, closest, changed, wishes)))
        raise DoesNotFit(plan)

    def option(self, recipe: Recipe) -> Option | None:
        """What a recipe takes; None if it cannot be used with this model, on this device."""
        if recipe not in self._known:
            self._known[recipe] = self._rehearse(recipe)
        return self._known[recipe]

    def refusal(self, recipe: Recipe) -> str | None:
        """Why a recipe that was asked for cannot be used."""
        return self._refused.get(" ".join(recipe.words))

    def _allowed(self, budget: Budget, wishes: Wishes) -> list[Option]:
        """All that may be taken; the slowest ways only where nothing else keeps to the budget."""
        device, batch = self.rehearsal.company.device, self.rehearsal.company.job.batch_size
        attention = self._attention_works(wishes)
        options = self._look_at(candidates(device, batch, wishes, attention=attention))
        options = [o for o in options if _ORDER.index(o.result) <= _ORDER.index(wishes.allow)] or options
        if not any(option.keeps_to(budget) for option in options):
            options += self._look_at(last_resorts(device, batch, wishes, attention=attention))
        if wishes.allow is Result.DIFFERENT and not any(option.keeps_to(budget) for option in options):
            options += self._look_at(self._different(wishes))
        return self._checked(options)

    def _checked(self, options: list[Option]) -> list[Option]:
        if not options:
            reason = next(iter(self._refused.values()), "what is pinned and what is avoided leave no recipe")
            raise RecipeError(f"No recipe can be made: {reason}")
        return options

    def _look_at(self, recipes: Iterable[Recipe]) -> list[Option]:
        recipes = list(dict.fromkeys(recipes))
        play_ahead(self.rehearsal, [recipe for recipe in (Recipe(), *recipes) if recipe not in self._known])
        found = [self.option(recipe) for recipe in recipes]
        return [option for option in found if option is not None]

    def _different(self, wishes: Wishes) -> Iterable[Recipe]:
        company = self.rehearsal.company
        return different(company.depth, company.job.batch_size, wishes, attention=self._attention_works(wishes))

    def _attention_works(self, wishes: Wishes) -> bool:
        """Worth taking on a processor wherever the model lets itself be changed; cards do it by themselves."""
        if self.rehearsal.company.device.kind != "cpu" or "attention" in wishes.avoided:
            return False
        return self.option(Recipe.parse(["attention"])) is not None

    def _rehearse(self, recipe: Recipe) -> Option | None:
        try:
            bill = self.rehearsal.bill(recipe)
        except RecipeError as error:
            self._refused[" ".join(recipe.words)] = str(error)
            return None
        return Option(
            recipe=recipe,
            bill=bill,
            seconds_per_step=self._pass_seconds(recipe) + self._update_seconds(recipe),
            steps_per_epoch=self.rehearsal.lengths.per_epoch,
        )

    def _pass_seconds(self, recipe: Recipe) -> float:
        """Whatever the optimizer and where it steps, the pass is the same."""
        passing = recipe.passing()
        if passing not in self._passes:
            played, parts = self.rehearsal.played(recipe)
            self._passes[passing] = self.clock.pass_seconds(played, parts, self.rehearsal.lengths)
        return self._passes[passing]

    def _update_seconds(self, recipe: Recipe) -> float:
        played, _ = self.rehearsal.played(recipe)
        return self.clock.update_seconds(played, recipe.optimizer)

    def _plan(
        self, budget: Budget, chosen: Option, others: list[Option], wishes: Wishes, ways: tuple[str, ...] = ()
    ) -> Plan:
        plain = self.option(Recipe())
        assert plain is not None  # no strategy, so nothing that could be refused
        return Plan(
            job=self.rehearsal.company.job,
            budget=budget,
            plain=plain,
            chosen=chosen,
            why=tuple(reasons_for(chosen, plain, self._known)),
            alternatives=tuple(_unlike(chosen, others)),
            refused=tuple(refusals(self._refused, chosen.recipe, budget.device, wishes)),
            advice=tuple(length_advice(self, chosen)),
            ways_out=ways,
        )


def _preference(option: Option) -> tuple[int, float]:
    return _ORDER.index(option.result), option.seconds_per_step


def _unlike(chosen: Option, others: list[Option]) -> list[Option]:
    """The best of each set of strategies, and of all the smallest: other sizes of the same are no alternative."""
    best: dict[tuple[str, ...], Option] = {}
    for option in others:
        best.setdefault(tuple(s.name for s in option.recipe.strategies), option)
    best.pop(tuple(s.name for s in chosen.recipe.strategies), None)
    shown = list(best.values())[:_ALTERNATIVES]
    smallest = min(others, key=lambda option: option.peak, default=chosen)
    return shown if smallest.peak >= min(o.peak for o in [chosen, *shown]) else [*shown, smallest]


@lru_cache(maxsize=4)
def _planner(job: Job, device: Device, stamp: tuple[int, ...]) -> Planner:
    known = Rehearsal.of(job, device)
    return Planner(Rehearsal(known.company, known.lengths, always_padded=True), clock_for(device))
