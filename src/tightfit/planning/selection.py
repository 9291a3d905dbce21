"""Selection: the recipe of a training run, chosen for a budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tightfit.device import NONE
from tightfit.messages import Message
from tightfit.strategies.recipe import Recipe


@dataclass(frozen=True)
class Selection:
    """A recipe that fits the budget, with its predicted time and memory."""

    recipe: Recipe
    seconds_per_step: float | None
    """None where nothing was planned."""
    upper_bound: int
    """Predicted peak in bytes, margin included."""
    notes: tuple[Message, ...]
    plan: dict[str, Any] | None = None
    """The new plan as JSON values; None if an earlier plan or the baseline was used."""
    process_bytes: int | None = None
    """The size of the process that it counts with."""


def is_chosen(budget: str | int | None, given: Recipe) -> bool:
    """Whether the recipe is chosen for a budget, by default for what the device has free; else it is the given one."""
    return budget != NONE and (budget is not None or not given.strategies)
