"""Drafts: what is known of every recipe that was looked at, each worked out once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial

from tightfit.device import Budget, Device
from tightfit.errors import DoesNotFit, RecipeError
from tightfit.job import Job
from tightfit.planning.candidates import candidates, different, last_resorts
from tightfit.planning.constraints import Wishes
from tightfit.planning.plan import Draft, Option, Plan, length_advice, reasons_for, refusals, ways_out
from tightfit.simulation.simulation import Rehearsal, play_ahead, stamp_of
from tightfit.strategies.base import Result, Strategy
from tightfit.strategies.recipe import Recipe
from tightfit.timing import Clock, clock_for


@dataclass
class Drafts:
    """Recipes of one job on one device."""

    rehearsal: Rehearsal
    clock: Clock
    looked_at: dict[Recipe, str | None] = field(default_factory=dict)
    """What was asked for, in this order: why it cannot be used with this model, on this device; None if it can."""
    _drafts: dict[Recipe, Draft | None] = field(default_factory=dict)
    _refusals: dict[Recipe, str] = field(default_factory=dict)
    _options: dict[Recipe, Option] = field(default_factory=dict)
    _passes: dict[Recipe, float] = field(default_factory=dict)

    def __contains__(self, recipe: Recipe) -> bool:
        return recipe in self._drafts

    def for_one_call(self) -> Drafts:
        """The same results, shared, but nothing asked for yet: what earlier calls asked for is not this call's."""
        return replace(self, looked_at={})

    @property
    def refused(self) -> list[str]:
        """Why recipes that were asked for cannot be used."""
        return [reason for reason in self.looked_at.values() if reason is not None]

    def refused_with(self, pinned: Iterable[Strategy]) -> list[str]:
        """The same for recipes that have these strategies: others are tried too, to see what the model can do."""
        wanted = set(pinned)
        return [why for recipe, why in self.looked_at.items() if why is not None and wanted <= set(recipe.strategies)]

    def refusal(self, recipe: Recipe) -> str | None:
        """Why a recipe cannot be used, whoever asked for it."""
        return self._refusals.get(recipe)

    def look_at(self, recipes: Iterable[Recipe]) -> list[Draft]:
        """Those of them that can be used."""
        recipes = list(dict.fromkeys(recipes))
        self.play(recipes)
        found = [self.draft(recipe) for recipe in recipes]
        return [draft for draft in found if draft is not None]

    def play(self, recipes: Iterable[Recipe]) -> None:
        """Side by side what will be looked at."""
        new = [recipe for recipe in (Recipe(), *recipes) if recipe not in self]
        play_ahead(self.rehearsal, [part for recipe in new for part in (recipe, recipe.passing())])

    def draft(self, recipe: Recipe) -> Draft | None:
        """None if it cannot be used."""
        if recipe not in self._drafts:
            self._drafts[recipe] = self._rehearse(recipe)
        self.looked_at.setdefault(recipe, self.refusal(recipe))
        return self._drafts[recipe]

    def option(self, draft: Draft) -> Option:
        """With its whole bill."""
        if draft.recipe not in self._options:
            self._options[draft.recipe] = Option(
                recipe=draft.recipe,
                bill=self.rehearsal.bill(draft.recipe),
                seconds_per_step=draft.seconds_per_step,
                steps_per_epoch=self.rehearsal.lengths.per_epoch,
            )
        return self._options[draft.recipe]

    def _rehearse(self, recipe: Recipe) -> Draft | None:
        try:
            at_least = self.rehearsal.at_least(recipe)
        except RecipeError as error:
            self._refusals[recipe] = str(error)
            return None
        seconds = self._pass_seconds(recipe) + self._update_seconds(recipe)
        return Draft(recipe=recipe, seconds_per_step=seconds, at_least=at_least)

    def _pass_seconds(self, recipe: Recipe) -> float:
        """Whatever the optimizer and where it steps, the pass is the same; one that steps would count steps twice."""
        passing = recipe.passing()
        if passing not in self._passes:
            played, parts = self.rehearsal.played(passing)
            self._passes[passing] = self.clock.pass_seconds(played, parts, self.rehearsal.lengths)
        return self._passes[passing]

    def _update_seconds(self, recipe: Recipe) -> float:
        played, _ = self.rehearsal.played(recipe)
        return self.clock.update_seconds(played, recipe.optimizer)


# The planner: looks at the candidates once and then answers for any budget.
#
# A recipe that leaves the result equal is preferred to one that leaves it close, and among those that keep to the
# budget the fastest is taken.


_ORDER = list(Result)
_ALTERNATIVES = 5
_ATTENTION = Recipe.parse(["attention"])


@dataclass
class Planner:
    """A job on a device, with all that is known of its recipes."""

    rehearsal: Rehearsal
    clock: Clock

    @cached_property
    def drafts(self) -> Drafts:
        """All that was looked at so far."""
        return Drafts(self.rehearsal, self.clock)

    @classmethod
    def of(cls, job: Job, device: Device) -> Planner:
        """For the same job and file only once."""
        return _planner(job, device, stamp_of(job))

    def plan(self, budget: Budget, wishes: Wishes) -> Plan:
        """The fastest of the gentlest recipes that fit; DoesNotFit, with the closest plan, where none does.

        The same for the same budget and wishes, whatever was planned before.
        """
        return self._for_one_call()._plan_within(budget, wishes)

    def _for_one_call(self) -> Planner:
        """What it worked out before is shared, so that nothing is played twice."""
        call = Planner(self.rehearsal, self.clock)
        call.drafts = self.drafts.for_one_call()
        return call

    def _plan_within(self, budget: Budget, wishes: Wishes) -> Plan:
        drafts = self._allowed(budget, wishes)
        fitting = self._fitting(drafts, budget)
        if fitting:
            return self._plan(budget, fitting[0], [*fitting[1:], *self._smaller(drafts, fitting, budget)], wishes)
        closest = self._closest(drafts)
        plan = self._plan(budget, closest, [], wishes, tuple(ways_out(self, closest, budget, wishes)))
        raise DoesNotFit(plan.shortfall, plan)

    def if_allowed(self, result: Result, budget: Budget, wishes: Wishes) -> Option | None:
        """What would fit, and does so to the result, where that is more than the wishes allow."""
        if _ORDER.index(result) <= _ORDER.index(wishes.allow):
            return None
        fitting = self._fitting(self._allowed(budget, replace(wishes, allow=result)), budget)
        return fitting[0] if fitting and fitting[0].result is result else None

    def option(self, recipe: Recipe) -> Option | None:
        """What a recipe takes; None if it cannot be used with this model, on this device."""
        draft = self.drafts.draft(recipe)
        return self.drafts.option(draft) if draft is not None else None

    def notes(self, budget: Budget) -> tuple[str, ...]:
        """What is odd about the budget, and about the machine's rates."""
        return tuple(note for note in (budget.note, self.clock.rates.note) if note)

    def refusal(self, recipe: Recipe) -> str | None:
        """Why a recipe that was asked for cannot be used."""
        return self.drafts.refusal(recipe)

    def _allowed(self, budget: Budget, wishes: Wishes) -> list[Draft]:
        """All that may be taken; the slowest ways only where nothing else keeps to the budget."""
        device, batch = self.rehearsal.company.device, self.rehearsal.company.job.batch_size
        offered = partial(candidates, device, batch, wishes, longest=self.rehearsal.lengths.longest)
        if self._may_take_attention(wishes) and _ATTENTION not in self.drafts:  # if it works, all of these are wanted
            self.drafts.play(offered(attention=True))
        attention = self._attention_works(wishes)
        looked = self.drafts.look_at(offered(attention=attention))
        harshest = max(_ORDER.index(wishes.allow), min(map(_rank, looked), default=0))  # what is pinned may be harsher
        drafts = [draft for draft in looked if _rank(draft) <= harshest]
        for resort in last_resorts(device, batch, wishes, attention=attention):
            if self._any_fits(drafts, budget):
                break
            drafts += [draft for draft in self.drafts.look_at(resort) if _rank(draft) <= harshest]
        if wishes.allow is Result.DIFFERENT and not self._any_fits(drafts, budget):
            drafts += self.drafts.look_at(self._different(wishes))
        return self._checked(drafts, wishes)

    def _checked(self, drafts: list[Draft], wishes: Wishes) -> list[Draft]:
        if not drafts:
            reasons = self.drafts.refused_with(wishes.pinned)
            reason = next(iter(reasons), "what is pinned and what is avoided leave no recipe")
            raise RecipeError(f"No recipe can be made: {reason}")
        return drafts

    def _fitting(self, drafts: Iterable[Draft], budget: Budget) -> list[Option]:
        """The best few. Neither other sizes of the same strategies nor what takes as long are alternatives."""
        best: list[Draft] = []
        for draft in sorted(drafts, key=lambda draft: (_rank(draft), draft.seconds_per_step)):
            if not any(draft.is_like(other) for other in best) and self._fits(draft, budget):
                best.append(draft)
            if len(best) > _ALTERNATIVES:
                break
        return [self.drafts.option(draft) for draft in best]

    def _smaller(self, drafts: Iterable[Draft], shown: list[Option], budget: Budget) -> list[Option]:
        """The smallest of all, where that is none of those that are shown."""
        smallest = self.drafts.option(min(drafts, key=lambda draft: draft.at_least))
        return [smallest] if smallest.peak < min(o.peak for o in shown) and smallest.keeps_to(budget) else []

    def _closest(self, drafts: Iterable[Draft]) -> Option:
        """The smallest, its margin included; of most drafts the least they take tells that they are not it."""
        closest: Option | None = None
        for draft in sorted(drafts, key=lambda draft: draft.at_least):
            if closest is not None and draft.at_least >= closest.at_most:
                break
            option = self.drafts.option(draft)
            closest = option if closest is None or option.at_most < closest.at_most else closest
        assert closest is not None  # there is always a draft
        return closest

    def _any_fits(self, drafts: Iterable[Draft], budget: Budget) -> bool:
        return any(self._fits(draft, budget) for draft in sorted(drafts, key=lambda draft: draft.at_least))

    def _fits(self, draft: Draft, budget: Budget) -> bool:
        return draft.at_least <= budget.size and self.drafts.option(draft).keeps_to(budget)

    def _different(self, wishes: Wishes) -> Iterable[Recipe]:
        company = self.rehearsal.company
        return different(company.depth, company.job.batch_size, wishes, attention=self._attention_works(wishes))

    def _attention_works(self, wishes: Wishes) -> bool:
        """Wherever the model lets itself be changed."""
        return self._may_take_attention(wishes) and self.drafts.draft(_ATTENTION) is not None

    def _may_take_attention(self, wishes: Wishes) -> bool:
        """It is worth taking on a processor; cards do it by themselves."""
        return self.rehearsal.company.device.kind == "cpu" and "attention" not in wishes.avoided

    def _plan(
        self, budget: Budget, chosen: Option, others: list[Option], wishes: Wishes, ways: tuple[str, ...] = ()
    ) -> Plan:
        plain = self.option(Recipe())
        assert plain is not None  # no strategy, so nothing that could be refused
        return Plan(
            job=self.rehearsal.company.job,
            budget=budget,
            wishes=wishes,
            plain=plain,
            chosen=chosen,
            why=tuple(reasons_for(chosen, plain, self._looked_at)),
            alternatives=tuple(others),
            refused=tuple(refusals(self.drafts.refused, chosen.recipe, budget.device, wishes)),
            advice=tuple(length_advice(self, chosen)),
            ways_out=ways,
            notes=self.notes(budget),
        )

    def _looked_at(self, recipe: Recipe) -> Option | None:
        """What is known of a recipe, if it was among the candidates."""
        return self.option(recipe) if recipe in self.drafts.looked_at else None


def _rank(draft: Draft) -> int:
    return _ORDER.index(draft.recipe.result)


@lru_cache(maxsize=4)
def _planner(job: Job, device: Device, stamp: tuple[int, ...]) -> Planner:
    known = Rehearsal.of(job, device)
    rehearsal = Rehearsal(known.company, known.lengths, always_padded=True)
    rehearsal.weigh()  # before the clock is made: what measuring imports is in no training
    return Planner(rehearsal, clock_for(device))
