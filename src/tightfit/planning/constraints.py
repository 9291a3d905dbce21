"""Constraints on a plan: strategies to use, strategies to avoid, and the allowed effect on the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tightfit.errors import BadInput, RecipeError, suggest
from tightfit.messages import msg
from tightfit.strategies import STRATEGIES
from tightfit.strategies.base import Result, Strategy
from tightfit.strategies.recipe import parse_strategy, split_specs

_NAMES = [result.value for result in Result]


class Prefer(str, Enum):
    """Which recipe a plan takes, if one with result `same` and a faster one with result `close` fit."""

    EXACT = "exact"  # the fastest with result `same`
    SPEED = "speed"  # the fastest of both


@dataclass(frozen=True)
class Constraints:
    """Pinned and avoided strategies, the strongest effect on the result that is allowed, and what is preferred."""

    pinned: tuple[Strategy, ...] = ()
    avoided: frozenset[str] = frozenset()
    allow: Result = Result.CLOSE
    prefer: Prefer = Prefer.EXACT

    @classmethod
    def of(
        cls, use: Sequence[str] = (), avoid: Sequence[str] = (), allow: str = "close", prefer: str = "exact"
    ) -> Constraints:
        """Parse the values of --use, --avoid, --allow and --prefer."""
        avoid = [spec.lower() for spec in split_specs(avoid)]
        known = {*STRATEGIES, *(variant for strategy in STRATEGIES.values() for variant in strategy.variants())}
        for name in avoid:
            if name not in known:
                hint = suggest(name, STRATEGIES)
                raise RecipeError(
                    msg("There is no strategy '{name}' to avoid: {suggestion}", name=name, suggestion=hint)
                )
        if allow not in _NAMES:
            hint = suggest(allow, _NAMES)
            raise BadInput(
                msg("--allow '{name}' is not an effect on the result: {suggestion}", name=allow, suggestion=hint)
            )
        if prefer not in (names := [each.value for each in Prefer]):
            raise BadInput(
                msg("--prefer '{name}' is not possible: {suggestion}", name=prefer, suggestion=suggest(prefer, names))
            )
        pinned = tuple(parse_strategy(spec) for spec in split_specs(use))
        for strategy in pinned:
            if strategy.name in avoid or strategy.variant in avoid:
                raise RecipeError(msg("'{name}' is given to both --use and --avoid: drop one.", name=strategy.name))
        return cls(pinned, frozenset(avoid), Result(allow), Prefer(prefer))

    @property
    def specs(self) -> dict[str, Any]:
        """The constraints as a plan file stores them."""
        return {
            "use": [one.spec for one in self.pinned],
            "avoid": sorted(self.avoided),
            "allow": self.allow.value,
            "prefer": self.prefer.value,
        }

    def allows(self, strategy: Strategy) -> bool:
        """Whether a strategy can be added to the pinned ones."""
        taken = any(
            strategy.name == pinned.name or (strategy.exclusive and strategy.exclusive == pinned.exclusive)
            for pinned in self.pinned
        )
        return not self.avoids(strategy) and not taken

    def avoids(self, strategy: Strategy) -> bool:
        """Whether a strategy or its variant is to be avoided."""
        return strategy.name in self.avoided or strategy.variant in self.avoided
