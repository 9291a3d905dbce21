"""Predicted time of each measured step, for its own batch: `length-bucketing` makes other batches than the default."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from tightfit import Job
from tightfit.device import find_device
from tightfit.simulation.job_simulation import Simulation
from tightfit.strategies.recipe import Recipe
from tightfit.timing import step_time_on


def predicted_steps(
    job: Job, recipes: list[list[str]], warm_up: int, steps: int
) -> Iterator[tuple[float, list[float]]]:
    """For each recipe the mean seconds of a step over the epoch, and those of each measured step."""
    simulation, step_time = Simulation.of(job, find_device("cpu")), step_time_on(find_device("cpu"))
    for recipe in map(Recipe.parse, recipes):
        traced, parts = simulation.traced(recipe)
        lengths = simulation.lengths.for_recipe(parts)
        tokens = [parts.step_batching.computed_tokens(batch[None]) for batch in lengths.batches]
        update = step_time.optimizer_seconds(traced, recipe.optimizer)
        token = step_time.forward_backward_seconds(traced, parts, simulation.lengths) / statistics.mean(tokens)
        each = [update + token * count for count in tokens]
        yield statistics.mean(each), each[warm_up : warm_up + steps]
