"""Performing: a training is played with as few layers as tell what the rest would do, else with all of them."""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightfit.compat import DataDependentOutputException, DynamicOutputShapeException, import_model_code
from tightfit.data.rows import Labels
from tightfit.device import Device
from tightfit.errors import ModelError, TightfitError, reason_of
from tightfit.job import Job
from tightfit.models import depth_of, load_config, period_of
from tightfit.processes import cores, do_without_threads
from tightfit.simulation.depth import deepen, splice
from tightfit.simulation.estimate import Bill, host_peak, least_of, moments_of
from tightfit.simulation.op_counts import Table
from tightfit.simulation.process_size import overhead_of
from tightfit.simulation.profile import Course, course_of
from tightfit.simulation.scaling import Extent, NotAlike, Numbers, fixed_sizes, learn_sizes
from tightfit.simulation.simulate import Extents, Performance, play
from tightfit.simulation.timeline import Timeline
from tightfit.simulation.trace import Tape
from tightfit.simulation.worst_case import Lengths, Shapes, tokens_of
from tightfit.strategies.parts import Parts
from tightfit.strategies.recipe import Recipe
from tightfit.tasks import find_task

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
    return reason_of(error).rstrip(".")


# A job on a device, ready for any number of bills: what differs only in rows and tokens is played once.


_LONGEST_PLAYED = 128
_SHORTER = {"cpu": 7}  # eighths of it: our tiles hold other rows for much shorter texts, and kernels of cards like 96


@dataclass(frozen=True)
class Played:
    """A recipe as it was played, and whether its sizes hold for other rows and tokens."""

    performance: Performance
    timeline: Timeline
    for_all: bool

    @property
    def parts(self) -> Parts:
        """The parts as shapes."""
        return self.performance.parts

    def sizes_of_slices(self, extents: Sequence[Extent]) -> Numbers:
        """To compare slices with each other; one is the first section of a play."""
        return self.timeline.sizes.of_section(0, extents)

    def tables(self, pair: int) -> list[tuple[int, Table]]:
        """The work of two like sections by their rows and tokens, and how often each counts."""
        done = self.performance
        sections = _pairs(done.tape)[pair]
        return [(weight, work.per_extent(done.tape.sections, sections)) for weight, work in done.work]


@dataclass
class Rehearsal:
    """Makes bills."""

    company: Company
    lengths: Lengths
    always_padded: bool = False
    """Whether slices of equal texts are taken for padded ones too: fewer plays, and at most a mask too much."""
    overhead: int | None = None
    """What there is without any tensor, where that is known better than by looking at this process."""
    _played: dict[tuple[bool, tuple[str, ...]], Played] = field(default_factory=dict)
    _as_they_are: dict[Recipe, Played] = field(default_factory=dict)

    @classmethod
    def of(cls, job: Job, device: Device, *, probe: bool = False) -> Rehearsal:
        """Read the data and the tokenizer; for the same job and file only once."""
        return _rehearsal(job, device, probe, stamp_of(job))

    def bill(self, recipe: Recipe) -> Bill:
        """What a recipe takes with this job's data."""
        played, parts = self.played(recipe)
        shapes = self._worst_shapes(parts, played)
        extents = _extents(shapes, played)
        return Bill(
            moments=moments_of(played.timeline, self.company.device, extents),
            host=host_peak(played.timeline, extents),
            overhead=self.weigh(),
            device=self.company.device,
            parameters=played.performance.parameters,
            trainable_parameters=played.performance.trainable_parameters,
            worst=str(shapes),
        )

    def at_least(self, recipe: Recipe) -> int:
        """Its peak without what an allocator adds, which takes long to tell for a card."""
        played, parts = self.played(recipe)
        return self.weigh() + least_of(played.timeline, _extents(self._worst_shapes(parts, played), played))

    def course(self, recipe: Recipe) -> Course | None:
        """One step of it, with the largest tensors at the peak."""
        played, parts = self.played(recipe)
        extents = _extents(self._worst_shapes(parts, played), played)
        return course_of(played.timeline, played.performance.tape, extents, self.bill(recipe).moment)

    def weigh(self) -> int:
        """What there is without any tensor: looked at once, before anything is played, since plays leave something."""
        if self.overhead is None:
            self.overhead = self.company.overhead()
        return self.overhead

    def played(self, recipe: Recipe) -> tuple[Played, Parts]:
        """The recipe as it was played, and its parts with the rows and tokens that it has here."""
        played = self._known(recipe) or self._play(recipe)
        return played, self._with_shapes(played.parts, recipe)

    def _known(self, recipe: Recipe) -> Played | None:
        """What was played of the same strategies, if it holds for this recipe's rows and tokens."""
        for padded in (True, False):
            played = self._played.get(_key(recipe, padded))
            if played is None:
                continue
            shapes = self._worst_shapes(self._with_shapes(played.parts, recipe))
            return self._played.get(_key(recipe, shapes.padded))
        return self._as_they_are.get(recipe)

    def _with_shapes(self, parts: Parts, recipe: Recipe) -> Parts:
        """The parts with this recipe's rows and tokens, whatever they were played with; some cannot be in slices."""
        job = self.company.job
        parts = replace(parts, slice_rows=job.batch_size, slice_tokens=None, max_length=job.max_length, pool=0)
        for strategy in recipe.strategies:
            if strategy.shapes_only or strategy.steps_in_pass:
                parts = strategy.apply(parts)
        return parts

    def _play(self, recipe: Recipe) -> Played:
        self.weigh()
        if _as_it_is(recipe):
            return self._play_as_it_is(recipe)
        performance = self._spliced(recipe) or self.company.perform(recipe, self._two_of_each)
        try:
            played = _for_all(performance)
        except NotAlike:
            return self._play_as_it_is(recipe)
        return self._played.setdefault(_key(recipe, performance.extents.padded), played)

    def unplayed(self, recipes: Iterable[Recipe]) -> list[Recipe]:
        """What has to be played for some recipes and has not been."""
        needed = [half for recipe in recipes for half in _halves(recipe) or (recipe,)]
        shapeless = [half if _as_it_is(half) else half.without_shapes() for half in needed]
        return [recipe for recipe in dict.fromkeys(shapeless) if self._known(recipe) is None]

    def remember(self, recipe: Recipe, played: Played) -> None:
        """Take over what was played elsewhere."""
        if played.for_all:
            self._played[_key(recipe, played.performance.extents.padded)] = played
        else:
            self._as_they_are[recipe] = played

    def _spliced(self, recipe: Recipe) -> Performance | None:
        """From a pass that was played with the usual optimizer, and the optimizer beside the usual pass."""
        halves = _halves(recipe)
        if halves is None:
            return None
        (one, _), (other, _) = (self.played(half) for half in halves)
        if not one.for_all or not other.for_all:
            return None
        tape = splice(one.performance.tape, other.performance.tape)
        return replace(one.performance, tape=tape, steps=other.performance.steps)

    def _play_as_it_is(self, recipe: Recipe) -> Played:
        performance = self.company.perform(recipe, self._worst)
        played = Played(performance, Timeline.of(performance.tape, fixed_sizes(performance.tape)), for_all=False)
        return self._as_they_are.setdefault(recipe, played)

    def _two_of_each(self, parts: Parts) -> Extents:
        """No two of: rows, tokens, rows x tokens, tokens², rows x tokens² change alike between these."""
        longest = min(self.company.job.max_length, _LONGEST_PLAYED)
        texts = ((6, longest), (4, max(1, longest * _SHORTER.get(self.company.device.kind, 6) // 8)))
        pair = ((6, 1), (4, 1)) if parts.trunk else texts
        return Extents(pair, pair, self._worst_shapes(parts).padded, trunk=texts if parts.trunk else ())

    def _worst_shapes(self, parts: Parts, played: Played | None = None) -> Shapes:
        """Which of two slices is the larger one, a play tells best."""
        shapes = self.lengths.worst(parts, played.sizes_of_slices if played and played.for_all else tokens_of)
        return replace(shapes, padded=True) if self.always_padded else shapes

    def _worst(self, parts: Parts) -> Extents:
        shapes = self._worst_shapes(parts)
        return Extents(shapes.slices, [shapes.evaluation], shapes.padded, shapes.texts, shapes.trunk)


def _for_all(performance: Performance) -> Played:
    """NotAlike where other rows and tokens cannot be told from it, be it their memory or their time."""
    sizes = learn_sizes(performance.tape, _pairs(performance.tape))
    played = Played(performance, Timeline.of(performance.tape, sizes), for_all=True)
    for pair in range(len(_pairs(performance.tape))):
        played.tables(pair)
    return played


def _as_it_is(recipe: Recipe) -> bool:
    return not all(strategy.scales for strategy in recipe.strategies)


def _halves(recipe: Recipe) -> tuple[Recipe, Recipe] | None:
    """How its gradients are computed, and how it steps, where each can be played without the other."""
    passing, stepping = recipe.passing(), recipe.stepping()
    inseparable = any(strategy.steps_in_pass for strategy in recipe.strategies)
    return None if inseparable or _as_it_is(recipe) or recipe in (passing, stepping) else (passing, stepping)


def _key(recipe: Recipe, padded: bool) -> tuple[bool, tuple[str, ...]]:
    return padded, tuple(strategy.word for strategy in recipe.strategies if not strategy.shapes_only)


def _pairs(tape: Tape) -> list[tuple[int, int]]:
    """Two batches of the trunk, where it runs by itself, two slices, two batches of the evaluation."""
    return [(first, first + 1) for first in range(0, len(tape.sections), 2)]


def _extents(shapes: Shapes, played: Played) -> list[tuple[int, int] | None]:
    """The rows and tokens of every section that was played."""
    if not played.for_all:
        return [*shapes.trunk, *shapes.slices, shapes.evaluation]
    first, later = ([*slices, None][:2] for slices in (shapes.first, shapes.slices))
    trunk, no_trunk = ([*shapes.trunk, None], [None, None]) if shapes.trunk else ([], [])
    return [*trunk, *first, shapes.evaluation, None, *no_trunk, *later, None, None]


@lru_cache(maxsize=4)
def _rehearsal(job: Job, device: Device, probe: bool, stamp: tuple[int, ...]) -> Rehearsal:
    import transformers.trainer  # noqa: F401, while the data is read beside; those who play inherit it

    from tightfit.data.dataset import glance_beside
    from tightfit.models import load_tokenizer

    glance, tokenizer = glance_beside(job), load_tokenizer(job.model)
    fitting = job.for_rows(len(glance.train))
    lengths = Lengths.of(fitting, glance.train, glance.validation)
    return Rehearsal(Company(fitting, device, glance.labels, tokenizer, probe), lengths)


def stamp_of(job: Job) -> tuple[int, ...]:
    """Changes when a file of the job does."""
    files = [Path(name) for name in (job.data, job.validation, job.model) if name is not None]
    return tuple(file.stat().st_mtime_ns for file in files if file.exists())


# Ahead: several recipes played at the same time, each on a core of its own.
#
# Plays are Python from end to end, so threads would wait for one another. A forked process has everything loaded but
# torch's own threads, and plays need none. Where there is no fork, recipes are played
# one after the other when they are asked for.


_forked: Rehearsal | None = None


def play_ahead(rehearsal: Rehearsal, recipes: Sequence[Recipe]) -> None:
    """Play what the recipes need and is not known yet."""
    global _forked
    needed = sorted(rehearsal.unplayed(recipes), key=_longest_first)
    if cores() < 2 or len(needed) < 2:
        return
    rehearsal.weigh()  # while the cores are free: among those who play, threads would wait for one another
    rehearsal.company.load_code()
    _forked = rehearsal  # the processes inherit both
    try:
        fork = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(min(cores(), 4), fork, initializer=do_without_threads) as pool:
            for recipe, played in zip(needed, pool.map(_play, needed), strict=True):
                if played is not None:
                    rehearsal.remember(recipe, played)
    except (BrokenProcessPool, OSError):
        pass  # they are played when they are asked for
    finally:
        _forked = None


def _longest_first(recipe: Recipe) -> int:
    """So that no core waits for the other at the end; many strategies make a long play."""
    return -len(recipe.strategies)


def _play(recipe: Recipe) -> Played | None:
    """In a process of its own. What goes wrong there goes wrong again, aloud, when the recipe is asked for."""
    assert _forked is not None
    try:
        played, _ = _forked.played(recipe)
    except Exception:
        return None
    if played.parts.base_stays:  # a trunk and an adapter hold the model, which cannot go from process to process
        return None
    parts: Any = replace(played.parts, model=None)
    return replace(played, performance=replace(played.performance, parts=parts))
