"""The planner: looks at the candidates once and then answers for any budget.

A recipe that leaves the result equal is preferred to one that leaves it close, and among those that keep to the
budget the fastest is taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial

from tightfit.budget import Budget
from tightfit.clock import Clock, clock_for
from tightfit.device import Device
from tightfit.errors import DoesNotFit, RecipeError
from tightfit.job import Job
from tightfit.planning.advice import length_advice
from tightfit.planning.candidates import candidates, different, last_resorts
from tightfit.planning.drafts import Drafts
from tightfit.planning.plans import Draft, Option, Plan
from tightfit.planning.reasons import reasons_for, refusals
from tightfit.planning.ways_out import ways_out
from tightfit.planning.wishes import Wishes
from tightfit.recipe import Recipe
from tightfit.rehearsal.rehearsal import Rehearsal, stamp_of
from tightfit.strategy import Result

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
        raise DoesNotFit(self._plan(budget, closest, [], wishes, tuple(ways_out(self, closest, budget, wishes))))

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
