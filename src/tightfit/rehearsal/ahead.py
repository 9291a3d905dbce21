"""Ahead: several recipes played at the same time, each on a core of its own.

Plays are Python from end to end, so threads would wait for one another. A forked process has everything loaded but
torch's own threads, and plays need none. Where there is no fork, recipes are played
one after the other when they are asked for.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from typing import Any

from tightfit.cores import cores, do_without_threads
from tightfit.recipe import Recipe
from tightfit.rehearsal.rehearsal import Played, Rehearsal

_rehearsal: Rehearsal | None = None


def play_ahead(rehearsal: Rehearsal, recipes: Sequence[Recipe]) -> None:
    """Play what the recipes need and is not known yet."""
    global _rehearsal
    needed = sorted(rehearsal.unplayed(recipes), key=_longest_first)
    if cores() < 2 or len(needed) < 2:
        return
    rehearsal.weigh()  # while the cores are free: among those who play, threads would wait for one another
    rehearsal.company.load_code()
    _rehearsal = rehearsal  # the processes inherit both
    try:
        fork = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(min(cores(), 4), fork, initializer=do_without_threads) as pool:
            for recipe, played in zip(needed, pool.map(_play, needed), strict=True):
                if played is not None:
                    rehearsal.remember(recipe, played)
    except (BrokenProcessPool, OSError):
        pass  # they are played when they are asked for
    finally:
        _rehearsal = None


def _longest_first(recipe: Recipe) -> int:
    """So that no core waits for the other at the end; many strategies make a long play."""
    return -len(recipe.strategies)


def _play(recipe: Recipe) -> Played | None:
    """In a process of its own. What goes wrong there goes wrong again, aloud, when the recipe is asked for."""
    assert _rehearsal is not None
    try:
        played, _ = _rehearsal.played(recipe)
    except Exception:
        return None
    if played.parts.base_stays:  # a trunk and an adapter hold the model, which cannot go from process to process
        return None
    parts: Any = replace(played.parts, model=None)
    return replace(played, performance=replace(played.performance, parts=parts))
