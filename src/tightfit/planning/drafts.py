"""Drafts: what is known of every recipe that was looked at, each worked out once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tightfit.clock import Clock
from tightfit.errors import RecipeError
from tightfit.planning.plans import Draft, Option
from tightfit.recipe import Recipe
from tightfit.rehearsal.ahead import play_ahead
from tightfit.rehearsal.rehearsal import Rehearsal
from tightfit.strategy import Strategy


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
