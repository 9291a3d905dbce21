"""Drafts: what is known of every recipe that was looked at, each worked out once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tightfit.clock import Clock
from tightfit.errors import RecipeError
from tightfit.planning.plans import Draft, Option
from tightfit.recipe import Recipe
from tightfit.rehearsal.ahead import play_ahead
from tightfit.rehearsal.rehearsal import Rehearsal


@dataclass
class Drafts:
    """Recipes of one job on one device."""

    rehearsal: Rehearsal
    clock: Clock
    refused: dict[str, str] = field(default_factory=dict)
    """Those that cannot be used with this model, on this device, and why."""
    _drafts: dict[Recipe, Draft | None] = field(default_factory=dict)
    _options: dict[Recipe, Option] = field(default_factory=dict)
    _passes: dict[Recipe, float] = field(default_factory=dict)

    def __contains__(self, recipe: Recipe) -> bool:
        return recipe in self._drafts

    def look_at(self, recipes: Iterable[Recipe]) -> list[Draft]:
        """Those of them that can be used."""
        recipes = list(dict.fromkeys(recipes))
        self.play(recipes)
        found = [self.draft(recipe) for recipe in recipes]
        return [draft for draft in found if draft is not None]

    def play(self, recipes: Iterable[Recipe]) -> None:
        """Side by side what will be looked at."""
        play_ahead(self.rehearsal, [recipe for recipe in (Recipe(), *recipes) if recipe not in self])

    def draft(self, recipe: Recipe) -> Draft | None:
        """None if it cannot be used."""
        if recipe not in self._drafts:
            self._drafts[recipe] = self._rehearse(recipe)
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
            self.refused[" ".join(recipe.words)] = str(error)
            return None
        seconds = self._pass_seconds(recipe) + self._update_seconds(recipe)
        return Draft(recipe=recipe, seconds_per_step=seconds, at_least=at_least)

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
