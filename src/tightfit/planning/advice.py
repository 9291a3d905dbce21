"""Advice: what shorter texts would lose and save, from the data's own lengths. Nothing is cut unasked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from tightfit.planning.plans import Option
from tightfit.recipe import Recipe
from tightfit.units import format_bytes

if TYPE_CHECKING:
    from tightfit.planning.planner import Planner

_SHARES = (0.75, 0.5)
_WORTH_IT = 0.03  # of the peak or of the time
_WORTH_SAYING = 0.005


def length_advice(planner: Planner, chosen: Option) -> Iterator[str]:
    """One line for each shorter limit that would save something."""
    longest = planner.rehearsal.lengths.longest
    if any(strategy.name == "max-length" for strategy in chosen.recipe.strategies):
        return
    for tokens in (int(longest * share) for share in _SHARES):
        if tokens < 2 or not all(strategy.scales for strategy in chosen.recipe.strategies):
            continue
        shorter = planner.option(Recipe.parse([*chosen.recipe.words, f"max-length:tokens={tokens}"]))
        if shorter is not None and (line := _line(planner, chosen, shorter, tokens)):
            yield line


def _line(planner: Planner, chosen: Option, shorter: Option, tokens: int) -> str | None:
    memory, time = 1 - shorter.peak / chosen.peak, 1 - shorter.seconds_per_step / chosen.seconds_per_step
    if max(memory, time) < _WORTH_IT:
        return None
    saved = [f"{time:.0%} of the time"]
    if memory >= _WORTH_SAYING:  # slices of so many tokens are as large whatever the texts
        saved.insert(0, format_bytes(chosen.peak - shorter.peak))
    return f"{cutting(planner, tokens)}, saves {' and '.join(saved)}"


def cutting(planner: Planner, tokens: int) -> str:
    """What shorter texts lose."""
    lengths = planner.rehearsal.lengths.batches
    touched = np.count_nonzero(lengths > tokens) / np.count_nonzero(lengths)
    lost = 1 - np.minimum(lengths, tokens).sum() / lengths.sum()
    return f"cutting at {tokens} tokens touches {touched:.0%} of rows, loses {lost:.0%} of tokens"
