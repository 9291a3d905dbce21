"""Steps held against what is foretold for their own batches: `bucket` deals out other ones than the others have."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import replace

from tightfit import Job
from tightfit.device import find_device
from tightfit.simulation.simulation import Simulation
from tightfit.simulation.worst_case import Lengths
from tightfit.strategies.parts import Parts
from tightfit.strategies.recipe import Recipe
from tightfit.timing import step_time_on


def foretold_of(job: Job, recipes: list[list[str]], warm_up: int, steps: int) -> Iterator[tuple[float, list[float]]]:
    """Seconds of the usual step of an epoch, and of each of the steps that were measured."""
    simulation, clock = Simulation.of(job, find_device("cpu")), step_time_on(find_device("cpu"))
    for recipe in map(Recipe.parse, recipes):
        traced, parts = simulation.traced(recipe)
        dealt = simulation.lengths.dealt_to(parts)
        tokens = [computed(replace(dealt, batches=batch[None]), parts) for batch in dealt.batches]
        update = clock.optimizer_seconds(traced, recipe.optimizer)
        token = clock.forward_backward_seconds(traced, parts, simulation.lengths) / statistics.mean(tokens)
        each = [update + token * met for met in tokens]
        yield statistics.mean(each), each[warm_up : warm_up + steps]


def computed(dealt: Lengths, parts: Parts) -> int:
    return dealt.tokens(parts) if parts.layer_rows else sum(rows * length for rows, length in dealt.slices(parts))
