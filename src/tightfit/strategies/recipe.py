"""Recipe: the strategies of a training and their settings, and the one grammar they are written in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import ValidationError

from tightfit.errors import RecipeError, suggest
from tightfit.strategies import STRATEGIES
from tightfit.strategies.base import Result, Strategy


@dataclass(frozen=True)
class Recipe:
    """Strategies in the order of the list, gentlest first, whatever order the user named them in."""

    strategies: tuple[Strategy, ...] = ()

    @classmethod
    def parse(cls, specs: Iterable[str]) -> Recipe:
        """Read `["micro-batch:size=8", "checkpoint"]`."""
        order = list(STRATEGIES.values())
        strategies = sorted((parse_strategy(spec) for spec in specs), key=lambda s: order.index(type(s)))
        _refuse_clashes(strategies)
        return cls(tuple(strategies))

    @property
    def specs(self) -> list[str]:
        """The recipe as the user would write it."""
        return [strategy.spec for strategy in self.strategies]

    def load(self) -> None:
        """Import the packages that its strategies need and that are there: they are part of the process it runs in."""
        for strategy in self.strategies:
            if strategy.is_available():
                strategy.load()

    def without_batching(self) -> Recipe:
        """The recipe without what changes only how many rows and tokens go through at once."""
        return Recipe(tuple(s for s in self.strategies if not s.batch_only))

    def without(self, strategy: Strategy) -> Recipe:
        """The recipe without one of its strategies."""
        return Recipe(tuple(s for s in self.strategies if s != strategy))

    def gradient_part(self) -> Recipe:
        """Only what has to do with how gradients are computed."""
        return Recipe(tuple(s for s in self.strategies if not s.step_only and not s.steps_in_backward))

    @property
    def optimizer(self) -> str:
        """The name of the one that it chooses."""
        return next((s.name for s in self.strategies if s.exclusive == "optimizer"), "adamw")

    def optimizer_part(self) -> Recipe:
        """Only what has to do with the parameters and their steps, not with how gradients are computed."""
        return Recipe(tuple(s for s in self.strategies if not s.gradients_only))

    @property
    def result(self) -> Result:
        """What the whole recipe does to the trained model: as much as its strongest strategy."""
        order = list(Result)
        return max((s.result for s in self.strategies), key=order.index, default=Result.SAME)


def parse_strategy(spec: str) -> Strategy:
    """Read one `name:key=value,key=value`."""
    name, _, settings = spec.strip().partition(":")
    if name not in STRATEGIES:
        raise RecipeError(f"There is no strategy '{name}': {suggest(name, STRATEGIES)}")
    kind = STRATEGIES[name]
    values = dict(_setting(kind, item) for item in settings.split(",") if item)
    kind.check_settings(values)
    try:
        return kind(**values)
    except ValidationError as error:
        first = error.errors()[0]
        raise RecipeError(f"{name}:{first['loc'][0]}={first['input']} does not work: {first['msg'].lower()}.") from None


def _setting(kind: type[Strategy], item: str) -> tuple[str, str]:
    key, equals, value = (part.strip() for part in item.partition("="))
    known = list(kind.settings())
    if not known:
        raise RecipeError(f"'{kind.name}' has no settings: write just '{kind.name}'.")
    if not equals and len(known) == 1 and key not in known:
        raise RecipeError(f"'{kind.name}:{item}' does not name the setting: write '{kind.name}:{known[0]}={item}'.")
    if key not in known:
        raise RecipeError(f"'{kind.name}' has no setting '{key}': {suggest(key, known)}")
    if not equals or not value:
        raise RecipeError(f"'{kind.name}:{item}' has no value: write it like '{kind.name}:{key}=...'.")
    return key, value


def _refuse_clashes(strategies: list[Strategy]) -> None:
    for i, first in enumerate(strategies):
        for second in strategies[i + 1 :]:
            if first.name == second.name:
                raise RecipeError(f"'{first.spec}' and '{second.spec}' are one strategy twice: keep one.")
            if first.exclusive and first.exclusive == second.exclusive:
                raise RecipeError(
                    f"'{first.spec}' and '{second.spec}' clash: both choose the {first.exclusive}. Keep one."
                )
