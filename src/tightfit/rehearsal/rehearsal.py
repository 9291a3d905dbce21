"""A job on a device, ready for any number of bills: what differs only in rows and tokens is played once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from tightfit.data.labels import Labels
from tightfit.data.tokens import token_lengths
from tightfit.device import Device
from tightfit.errors import ModelError, TightfitError
from tightfit.job import Job
from tightfit.recipe import Recipe
from tightfit.rehearsal.bill import Bill, moments_of
from tightfit.rehearsal.lengths import Lengths, Shapes
from tightfit.rehearsal.process import overhead_of
from tightfit.rehearsal.sizes import NotAlike, fixed_sizes, learn_sizes
from tightfit.rehearsal.stage import Extents, Performance, play
from tightfit.rehearsal.timeline import Timeline
from tightfit.strategy import Parts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_LONGEST_PLAYED = 128
_PAIRS = ((0, 1), (2, 3))  # two slices, two batches of the evaluation


@dataclass(frozen=True)
class Played:
    """A recipe as it was played, and whether its sizes hold for other rows and tokens."""

    parts: Parts
    timeline: Timeline
    for_all: bool


@dataclass
class Rehearsal:
    """Makes bills."""

    job: Job
    device: Device
    labels: Labels
    tokenizer: PreTrainedTokenizerBase
    lengths: Lengths
    probe: bool = False
    """Whether a model that looks at its data may be tried out on real tensors."""
    _played: dict[tuple[bool, tuple[str, ...]], Played] = field(default_factory=dict)

    @classmethod
    def of(cls, job: Job, device: Device, *, probe: bool = False) -> Rehearsal:
        """Read the data and the tokenizer; for the same job and file only once."""
        return _rehearsal(job, device, probe, _stamp(job))

    def bill(self, recipe: Recipe) -> Bill:
        """What a recipe takes with this job's data."""
        played = self._known(recipe) or self._play(recipe)
        parts = self._with_shapes(played.parts, recipe)
        shapes = self.lengths.worst(parts)
        moments = moments_of(played.timeline, self.device, _extents(shapes, played))
        if self.lengths.evaluations < 2:
            moments.pop("load-best", None)
        return Bill(
            moments=moments,
            overhead=overhead_of(self.device),
            device=self.device,
            parameters=parts.parameters,
            trainable_parameters=parts.trainable_parameters,
            worst=str(shapes),
        )

    def _known(self, recipe: Recipe) -> Played | None:
        """What was played of the same strategies, if it holds for this recipe's rows and tokens."""
        for padded in (True, False):
            played = self._played.get(_key(recipe, padded))
            if played is None:
                continue
            shapes = self.lengths.worst(self._with_shapes(played.parts, recipe))
            return self._played.get(_key(recipe, shapes.padded))
        return None

    def _with_shapes(self, parts: Parts, recipe: Recipe) -> Parts:
        """The parts with this recipe's rows and tokens, whatever they were played with."""
        parts = replace(parts, slice_rows=self.job.batch_size, max_length=self.job.max_length)
        for strategy in recipe.strategies:
            if strategy.shapes_only:
                parts = strategy.apply(parts)
        return parts

    def _play(self, recipe: Recipe) -> Played:
        if not all(strategy.scales for strategy in recipe.strategies):
            return self._play_as_it_is(recipe)
        performance = self._perform(recipe, self._two_of_each)
        try:
            sizes = learn_sizes(performance.tape, _PAIRS)
        except NotAlike:
            return self._play_as_it_is(recipe)
        played = Played(performance.parts, Timeline.of(performance.tape, sizes), for_all=True)
        return self._played.setdefault(_key(recipe, performance.extents.padded), played)

    def _play_as_it_is(self, recipe: Recipe) -> Played:
        performance = self._perform(recipe, self._worst)
        return Played(performance.parts, Timeline.of(performance.tape, fixed_sizes(performance.tape)), for_all=False)

    def _two_of_each(self, parts: Parts) -> Extents:
        """No two of: rows, tokens, rows x tokens, tokens², rows x tokens² change alike between these."""
        longest = min(self.job.max_length, _LONGEST_PLAYED)
        pair = ((6, longest), (4, max(1, longest * 3 // 4)))
        return Extents(pair, pair, self.lengths.worst(parts).padded)

    def _worst(self, parts: Parts) -> Extents:
        shapes = self.lengths.worst(parts)
        return Extents(shapes.slices, [shapes.evaluation], shapes.padded)

    def _perform(self, recipe: Recipe, extents: Callable[[Parts], Extents]) -> Performance:
        without_weights = self.job.model_copy(update={"random_weights": True})
        stage = (without_weights, recipe, self.device, self.labels, self.tokenizer, extents)
        try:
            return play(*stage)
        except TightfitError:
            raise
        except Exception as error:  # whatever a model's own code stumbles over when its tensors hold no data
            if self.probe and self.device.kind == "cpu":
                return play(*stage, shapes_only=False)
            raise ModelError(
                f"'{self.job.model}' cannot be rehearsed: {_reason(error)}. "
                "Add --probe to try a small step out on real tensors (--device cpu)."
            ) from error


def _key(recipe: Recipe, padded: bool) -> tuple[bool, tuple[str, ...]]:
    return padded, tuple(strategy.word for strategy in recipe.strategies if not strategy.shapes_only)


def _reason(error: Exception) -> str:
    if isinstance(error, (DataDependentOutputException, DynamicOutputShapeException)):
        return f"its code looks at the data ({error.func}), which a rehearsal has not"
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def _extents(shapes: Shapes, played: Played) -> list[tuple[int, int] | None]:
    """The rows and tokens of every section that was played."""
    if not played.for_all:
        return [*shapes.slices, shapes.evaluation]
    first, later = ([*slices, None][:2] for slices in (shapes.first, shapes.slices))
    return [*first, shapes.evaluation, None, *later, None, None]


@lru_cache(maxsize=4)
def _rehearsal(job: Job, device: Device, probe: bool, stamp: tuple[int, ...]) -> Rehearsal:
    from tightfit.preparation import read_data
    from tightfit.weights import load_tokenizer

    data, tokenizer = read_data(job), load_tokenizer(job.model)
    lengths = [token_lengths(part, tokenizer, job.max_length) for part in (data.split.train, data.split.validation)]
    return Rehearsal(job, device, data.labels, tokenizer, Lengths.of(job, *lengths), probe)


def _stamp(job: Job) -> tuple[int, ...]:
    """Changes when a file of the job does."""
    files = [Path(name) for name in (job.data, job.validation, job.model) if name is not None]
    return tuple(file.stat().st_mtime_ns for file in files if file.exists())
