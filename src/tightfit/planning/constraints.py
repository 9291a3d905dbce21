"""Wishes: what the user wants in a recipe, does not want in it, and allows it to do to the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tightfit.errors import BadInput, RecipeError, suggest
from tightfit.strategies import STRATEGIES
from tightfit.strategies.base import Result, Strategy
from tightfit.strategies.recipe import parse_strategy

_NAMES = [result.value for result in Result]


@dataclass(frozen=True)
class Wishes:
    """Pinned strategies, unwanted ones, and the strongest effect on the result that may be taken."""

    pinned: tuple[Strategy, ...] = ()
    avoided: frozenset[str] = frozenset()
    allow: Result = Result.CLOSE

    @classmethod
    def of(cls, use: Sequence[str] = (), avoid: Sequence[str] = (), allow: str = "close") -> Wishes:
        """Read the words of the command line."""
        for name in avoid:
            if name not in STRATEGIES:
                raise RecipeError(f"There is no strategy '{name}' to avoid: {suggest(name, STRATEGIES)}")
        if allow not in _NAMES:
            raise BadInput(f"--allow '{allow}' is not an effect on the result: {suggest(allow, _NAMES)}")
        pinned = tuple(parse_strategy(word) for word in use)
        for strategy in pinned:
            if strategy.name in avoid:
                raise RecipeError(f"'{strategy.name}' is both to be used and to be avoided: drop one.")
        return cls(pinned, frozenset(avoid), Result(allow))

    @property
    def words(self) -> dict[str, Any]:
        """As they are written in a file."""
        return {"use": [one.word for one in self.pinned], "avoid": sorted(self.avoided), "allow": self.allow.value}

    def welcomes(self, strategy: Strategy) -> bool:
        """Whether a strategy may be taken beside the pinned ones."""
        taken = any(
            strategy.name == pinned.name or (strategy.chooses and strategy.chooses == pinned.chooses)
            for pinned in self.pinned
        )
        return strategy.name not in self.avoided and not taken
