"""Performing: a training is played with as few layers as tell what the rest would do, else with all of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tightfit.compat import DataDependentOutputException, DynamicOutputShapeException, import_model_code
from tightfit.data.labels import Labels
from tightfit.device import Device
from tightfit.errors import ModelError, TightfitError
from tightfit.job import Job
from tightfit.layers import depth_of, period_of
from tightfit.recipe import Recipe
from tightfit.rehearsal.depth import deepen
from tightfit.rehearsal.process import overhead_of
from tightfit.rehearsal.sizes import NotAlike
from tightfit.rehearsal.stage import Extents, Performance, play
from tightfit.strategies.parts import Parts
from tightfit.tasks import find_task
from tightfit.weights import load_config

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

_FEWEST = 2  # the first and the last layer, or layers taken as one, may differ from those between


@dataclass(frozen=True)
class Company:
    """Those who play: a job's model, on a device."""

    job: Job
    device: Device
    labels: Labels
    tokenizer: PreTrainedTokenizerBase
    probe: bool = False
    """Whether a model that looks at its data may be tried out on real tensors."""

    def perform(self, recipe: Recipe, extents: Callable[[Parts], Extents]) -> Performance:
        """Play a recipe, at the full depth."""
        try:
            return self._perform(recipe, extents)
        except TightfitError:
            raise
        except Exception as error:  # whatever a model's own code stumbles over when its tensors hold no data
            if self.probe and self.device.kind == "cpu":
                return self._play(recipe, extents, shapes_only=False)
            raise ModelError(
                f"'{self.job.model}' cannot be rehearsed: {_reason(error)}. "
                "Add --probe to try a small step out on real tensors (--device cpu)."
            ) from error

    def _perform(self, recipe: Recipe, extents: Callable[[Parts], Extents]) -> Performance:
        for shallow, deeper, times in self._depths(recipe):
            try:
                two = [self._play(recipe, extents, layers=layers) for layers in (shallow, deeper)]
                return _deepened(two[0], two[1], times)
            except NotAlike:
                pass
        return self._play(recipe, extents)

    def _depths(self, recipe: Recipe) -> list[tuple[int, int, int]]:
        """Two shallow depths and how often their difference is missing; none where it saves nothing."""
        depth, periods = depth_of(self._config), [strategy.period for strategy in recipe.strategies]
        if depth is None or None in periods:
            return []
        step = math.lcm(period_of(self._config), *(period for period in periods if period is not None))
        fewest = _FEWEST * max((strategy.together for strategy in recipe.strategies), default=1)
        shallow = fewest + (depth - fewest) % step
        times = (depth - shallow) // step - 1
        return [(shallow, shallow + step, times)] if 2 * shallow + step < depth else []

    def _play(self, recipe: Recipe, extents: Callable[[Parts], Extents], **how: Any) -> Performance:
        without_weights = self.job.model_copy(update={"random_weights": True})
        return play(without_weights, recipe, self.device, self.labels, self.tokenizer, extents, **how)

    def overhead(self) -> int:
        """What there is without any tensor."""
        self.load_code()
        return overhead_of(self.device, loads_weights=not self.job.random_weights)

    def load_code(self) -> None:
        """Import the model's own: it is part of the process, and those who play in others need not do it each."""
        import_model_code(find_task(self.job.task).head(), self._config)

    @property
    def depth(self) -> int | None:
        """How many layers the model has, where it says so."""
        return depth_of(self._config)

    @cached_property
    def _config(self) -> PretrainedConfig:
        return load_config(self.job.model)


def _deepened(shallow: Performance, deeper: Performance, times: int) -> Performance:
    work = ((1 + times, deeper.work[0][1]), (-times, shallow.work[0][1]))
    return replace(
        deeper,
        tape=deepen(shallow.tape, deeper.tape, times),
        parameters=deeper.parameters + times * (deeper.parameters - shallow.parameters),
        trainable_parameters=deeper.trainable_parameters
        + times * (deeper.trainable_parameters - shallow.trainable_parameters),
        work=work,
        steps=work,
    )


def _reason(error: Exception) -> str:
    if isinstance(error, (DataDependentOutputException, DynamicOutputShapeException)):
        return f"its code looks at the data ({error.func}), which a rehearsal has not"
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
