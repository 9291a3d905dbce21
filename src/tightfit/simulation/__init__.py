"""Rehearsal: the memory bill of a training before its first step, without weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tightfit.device import find_device_or_card
from tightfit.job import Job
from tightfit.simulation.estimate import Bill
from tightfit.strategies.recipe import Recipe

Loop = Callable[[], Any]


def rehearse(job: Job | Loop, use: str | Sequence[str] = (), device: str | None = None, *, probe: bool = False) -> Bill:
    """Say what a training will take: bytes by moment and kind, from the model's shape and the data's lengths.

    Instead of a job it takes a function that builds a training of your own and returns its step.
    With `probe` a model that cannot be rehearsed is tried out on real tensors.
    """
    where = find_device_or_card(device)
    if not isinstance(job, Job):
        from tightfit.simulation.own_loop import rehearse_loop

        return rehearse_loop(job, where)
    recipe = use if isinstance(use, Recipe) else Recipe.parse([use] if isinstance(use, str) else use)

    from tightfit.simulation.simulation import Rehearsal, play_ahead

    recipe.load()
    rehearsal = Rehearsal.of(job, where, probe=probe)
    if not probe:  # which may use real tensors, and with them threads that a fork has not
        play_ahead(rehearsal, [recipe])
    return rehearsal.bill(recipe)
