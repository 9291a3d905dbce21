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
from tightfit.errors import ModelError, TightfitError, first_line
from tightfit.job import Job
from tightfit.models import layer_period, load_config, num_layers
from tightfit.processes import usable_cpus, use_one_thread
from tightfit.simulation.depth import extrapolate_depth, with_optimizer_of
from tightfit.simulation.estimate import Estimate, host_peak, least_of, phases_of
from tightfit.simulation.op_counts import Table
from tightfit.simulation.process_size import process_bytes, process_size_note
from tightfit.simulation.profile import StepProfile, profile_of
from tightfit.simulation.scaling import BatchShape, NotExtrapolable, Numbers, constant_sizes, fit_sizes
from tightfit.simulation.simulate import BatchShapes, TracedTraining, trace_training
from tightfit.simulation.timeline import Timeline
from tightfit.simulation.trace import Trace
from tightfit.simulation.worst_case import Lengths, WorstShapes, tokens_of
from tightfit.strategies.parts import Parts
from tightfit.strategies.recipe import Recipe
from tightfit.tasks import find_task

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase


_FEWEST = 2  # the first and the last layer, or layers taken as one, may differ from those between


@dataclass(frozen=True)
class SimulationSetup:
    """Those who play: a job's model, on a device."""

    job: Job
    device: Device
    labels: Labels
    tokenizer: PreTrainedTokenizerBase
    probe: bool = False
    """Whether a model that looks at its data may be tried out on real tensors."""

    def trace(self, recipe: Recipe, shapes: Callable[[Parts], BatchShapes]) -> TracedTraining:
        """Play a recipe, at the full depth."""
        try:
            return self._trace(recipe, shapes)
        except TightfitError:
            raise
        except Exception as error:  # whatever a model's own code stumbles over when its tensors hold no data
            if self.probe and self.device.kind == "cpu":
                return self._trace_training(recipe, shapes, fake=False)
            raise ModelError(
                f"'{self.job.model}' cannot be rehearsed: {_reason(error)}. "
                "Add --probe to try a small step out on real tensors (--device cpu)."
            ) from error

    def _trace(self, recipe: Recipe, shapes: Callable[[Parts], BatchShapes]) -> TracedTraining:
        for shallow, deeper, times in self._depths(recipe):
            try:
                two = [self._trace_training(recipe, shapes, layers=layers) for layers in (shallow, deeper)]
                return _deepened(two[0], two[1], times)
            except NotExtrapolable:
                pass
        return self._trace_training(recipe, shapes)

    def _depths(self, recipe: Recipe) -> list[tuple[int, int, int]]:
        """Two shallow depths and how often their difference is missing; none where it saves nothing."""
        depth, periods = num_layers(self._config), [strategy.period for strategy in recipe.strategies]
        if depth is None or None in periods:
            return []
        step = math.lcm(layer_period(self._config), *(period for period in periods if period is not None))
        fewest = _FEWEST * max((strategy.together for strategy in recipe.strategies), default=1)
        shallow = fewest + (depth - fewest) % step
        times = (depth - shallow) // step - 1
        return [(shallow, shallow + step, times)] if 2 * shallow + step < depth else []

    def _trace_training(self, recipe: Recipe, shapes: Callable[[Parts], BatchShapes], **how: Any) -> TracedTraining:
        without_weights = self.job.model_copy(update={"random_weights": True})
        return trace_training(without_weights, recipe, self.device, self.labels, self.tokenizer, shapes, **how)

    def overhead(self) -> int:
        """What there is without any tensor."""
        self.load_code()
        return process_bytes(self.device, loads_weights=not self.job.random_weights)

    def load_code(self) -> None:
        """Import the model's own: it is part of the process, and those who play in others need not do it each."""
        import_model_code(find_task(self.job.task).head(), self._config)

    @property
    def depth(self) -> int | None:
        """How many layers the model has, where it says so."""
        return num_layers(self._config)

    @cached_property
    def _config(self) -> PretrainedConfig:
        return load_config(self.job.model)


def _deepened(shallow: TracedTraining, deeper: TracedTraining, times: int) -> TracedTraining:
    work = ((1 + times, deeper.work[0][1]), (-times, shallow.work[0][1]))
    return replace(
        deeper,
        trace=extrapolate_depth(shallow.trace, deeper.trace, times),
        parameters=deeper.parameters + times * (deeper.parameters - shallow.parameters),
        trainable_parameters=deeper.trainable_parameters
        + times * (deeper.trainable_parameters - shallow.trainable_parameters),
        work=work,
        steps=work,
    )


def _reason(error: Exception) -> str:
    if isinstance(error, (DataDependentOutputException, DynamicOutputShapeException)):
        return f"its code looks at the data ({error.func}), which a rehearsal has not"
    return first_line(error).rstrip(".")


# A job on a device, ready for any number of bills: what differs only in rows and tokens is played once.


_LONGEST_PLAYED = 128
_SHORTER = {"cpu": 7}  # eighths of it: our tiles hold other rows for much shorter texts, and kernels of cards like 96


@dataclass(frozen=True)
class TracedRecipe:
    """A recipe as it was played, and whether its sizes hold for other rows and tokens."""

    training: TracedTraining
    timeline: Timeline
    for_all: bool

    @property
    def parts(self) -> Parts:
        """The parts as shapes."""
        return self.training.parts

    def micro_batch_sizes(self, shapes: Sequence[BatchShape]) -> Numbers:
        """To compare slices with each other; one is the first section of a play."""
        return self.timeline.sizes.of_section(0, shapes)

    def tables(self, pair: int) -> list[tuple[int, Table]]:
        """The work of two like sections by their rows and tokens, and how often each counts."""
        done = self.training
        sections = _pairs(done.trace)[pair]
        return [(weight, work.by_shape(done.trace.sections, sections)) for weight, work in done.work]


@dataclass
class Simulation:
    """Makes bills."""

    setup: SimulationSetup
    lengths: Lengths
    always_padded: bool = False
    """Whether slices of equal texts are taken for padded ones too: fewer plays, and at most a mask too much."""
    overhead: int | None = None
    """What there is without any tensor, where that is known better than by looking at this process."""
    _traced: dict[tuple[bool, tuple[str, ...]], TracedRecipe] = field(default_factory=dict)
    _as_they_are: dict[Recipe, TracedRecipe] = field(default_factory=dict)

    @classmethod
    def of(cls, job: Job, device: Device, *, probe: bool = False) -> Simulation:
        """Read the data and the tokenizer; for the same job and file only once."""
        return _simulation(job, device, probe, stamp_of(job))

    def estimate(self, recipe: Recipe) -> Estimate:
        """What a recipe takes with this job's data."""
        traced, parts = self.traced(recipe)
        worst = self._worst_shapes(parts, traced)
        shapes = _section_shapes(worst, traced)
        return Estimate(
            phases=phases_of(traced.timeline, self.setup.device, shapes),
            host=host_peak(traced.timeline, shapes),
            overhead=self.weigh(),
            device=self.setup.device,
            parameters=traced.training.parameters,
            trainable_parameters=traced.training.trainable_parameters,
            worst=str(worst),
            notes=process_size_note(self.setup.device, self.weigh()),
        )

    def at_least(self, recipe: Recipe) -> int:
        """Its peak without what an allocator adds, which takes long to tell for a card."""
        traced, parts = self.traced(recipe)
        return self.weigh() + least_of(traced.timeline, _section_shapes(self._worst_shapes(parts, traced), traced))

    def course(self, recipe: Recipe) -> StepProfile | None:
        """One step of it, with the largest tensors at the peak."""
        traced, parts = self.traced(recipe)
        shapes = _section_shapes(self._worst_shapes(parts, traced), traced)
        return profile_of(traced.timeline, traced.training.trace, shapes, self.estimate(recipe).phase)

    def weigh(self) -> int:
        """What there is without any tensor: looked at once, before anything is played, since plays leave something."""
        if self.overhead is None:
            self.overhead = self.setup.overhead()
        return self.overhead

    def traced(self, recipe: Recipe) -> tuple[TracedRecipe, Parts]:
        """The recipe as it was played, and its parts with the rows and tokens that it has here."""
        traced = self._known(recipe) or self._trace_training(recipe)
        return traced, self._with_shapes(traced.parts, recipe)

    def _known(self, recipe: Recipe) -> TracedRecipe | None:
        """What was played of the same strategies, if it holds for this recipe's rows and tokens."""
        for padded in (True, False):
            traced = self._traced.get(_key(recipe, padded))
            if traced is None:
                continue
            worst = self._worst_shapes(self._with_shapes(traced.parts, recipe))
            return self._traced.get(_key(recipe, worst.padded))
        return self._as_they_are.get(recipe)

    def _with_shapes(self, parts: Parts, recipe: Recipe) -> Parts:
        """The parts with this recipe's rows and tokens, whatever they were played with; some cannot be in slices."""
        job = self.setup.job
        parts = replace(
            parts, micro_batch_size=job.batch_size, micro_batch_tokens=None, max_length=job.max_length, pool=0
        )
        for strategy in recipe.strategies:
            if strategy.batch_only or strategy.steps_in_backward:
                parts = strategy.apply(parts)
        return parts

    def _trace_training(self, recipe: Recipe) -> TracedRecipe:
        self.weigh()
        if _as_it_is(recipe):
            return self._trace_fixed(recipe)
        training = self._spliced(recipe) or self.setup.trace(recipe, self._two_of_each)
        try:
            traced = _for_all(training)
        except NotExtrapolable:
            return self._trace_fixed(recipe)
        return self._traced.setdefault(_key(recipe, training.shapes.padded), traced)

    def missing(self, recipes: Iterable[Recipe]) -> list[Recipe]:
        """What has to be played for some recipes and has not been."""
        needed = [half for recipe in recipes for half in _halves(recipe) or (recipe,)]
        shapeless = [half if _as_it_is(half) else half.without_batching() for half in needed]
        return [recipe for recipe in dict.fromkeys(shapeless) if self._known(recipe) is None]

    def remember(self, recipe: Recipe, traced: TracedRecipe) -> None:
        """Take over what was played elsewhere."""
        if traced.for_all:
            self._traced[_key(recipe, traced.training.shapes.padded)] = traced
        else:
            self._as_they_are[recipe] = traced

    def _spliced(self, recipe: Recipe) -> TracedTraining | None:
        """From a pass that was played with the usual optimizer, and the optimizer beside the usual pass."""
        halves = _halves(recipe)
        if halves is None:
            return None
        (one, _), (other, _) = (self.traced(half) for half in halves)
        if not one.for_all or not other.for_all:
            return None
        trace = with_optimizer_of(one.training.trace, other.training.trace)
        return replace(one.training, trace=trace, steps=other.training.steps)

    def _trace_fixed(self, recipe: Recipe) -> TracedRecipe:
        training = self.setup.trace(recipe, self._worst)
        traced = TracedRecipe(training, Timeline.of(training.trace, constant_sizes(training.trace)), for_all=False)
        return self._as_they_are.setdefault(recipe, traced)

    def _two_of_each(self, parts: Parts) -> BatchShapes:
        """No two of: rows, tokens, rows x tokens, tokens², rows x tokens² change alike between these."""
        longest = min(self.setup.job.max_length, _LONGEST_PLAYED)
        texts = ((6, longest), (4, max(1, longest * _SHORTER.get(self.setup.device.kind, 6) // 8)))
        pair = ((6, 1), (4, 1)) if parts.feature_cache else texts
        return BatchShapes(
            pair, pair, self._worst_shapes(parts).padded, feature_cache=texts if parts.feature_cache else ()
        )

    def _worst_shapes(self, parts: Parts, traced: TracedRecipe | None = None) -> WorstShapes:
        """Which of two slices is the larger one, a play tells best."""
        worst = self.lengths.worst(parts, traced.micro_batch_sizes if traced and traced.for_all else tokens_of)
        return replace(worst, padded=True) if self.always_padded else worst

    def _worst(self, parts: Parts) -> BatchShapes:
        worst = self._worst_shapes(parts)
        return BatchShapes(worst.slices, [worst.evaluation], worst.padded, worst.texts, worst.feature_cache)


def _for_all(training: TracedTraining) -> TracedRecipe:
    """NotAlike where other rows and tokens cannot be told from it, be it their memory or their time."""
    sizes = fit_sizes(training.trace, _pairs(training.trace))
    traced = TracedRecipe(training, Timeline.of(training.trace, sizes), for_all=True)
    for pair in range(len(_pairs(training.trace))):
        traced.tables(pair)
    return traced


def _as_it_is(recipe: Recipe) -> bool:
    return not all(strategy.scales for strategy in recipe.strategies)


def _halves(recipe: Recipe) -> tuple[Recipe, Recipe] | None:
    """How its gradients are computed, and how it steps, where each can be played without the other."""
    passing, stepping = recipe.gradient_part(), recipe.optimizer_part()
    inseparable = any(strategy.steps_in_backward for strategy in recipe.strategies)
    return None if inseparable or _as_it_is(recipe) or recipe in (passing, stepping) else (passing, stepping)


def _key(recipe: Recipe, padded: bool) -> tuple[bool, tuple[str, ...]]:
    return padded, tuple(strategy.spec for strategy in recipe.strategies if not strategy.batch_only)


def _pairs(trace: Trace) -> list[tuple[int, int]]:
    """Two batches of the trunk, where it runs by itself, two slices, two batches of the evaluation."""
    return [(first, first + 1) for first in range(0, len(trace.sections), 2)]


def _section_shapes(worst: WorstShapes, traced: TracedRecipe) -> list[tuple[int, int] | None]:
    """The rows and tokens of every section that was played."""
    if not traced.for_all:
        return [*worst.feature_cache, *worst.slices, worst.evaluation]
    first, later = ([*slices, None][:2] for slices in (worst.first, worst.slices))
    feature_cache, no_trunk = ([*worst.feature_cache, None], [None, None]) if worst.feature_cache else ([], [])
    return [*feature_cache, *first, worst.evaluation, None, *no_trunk, *later, None, None]


@lru_cache(maxsize=4)
def _simulation(job: Job, device: Device, probe: bool, stamp: tuple[int, ...]) -> Simulation:
    import transformers.trainer  # noqa: F401, while the data is read beside; those who play inherit it

    from tightfit.data.dataset import prefetched_stats
    from tightfit.models import load_tokenizer

    glance, tokenizer = prefetched_stats(job), load_tokenizer(job.model)
    fitting = job.clip_batch_size(len(glance.train))
    lengths = Lengths.of(fitting, glance.train, glance.validation)
    return Simulation(SimulationSetup(fitting, device, glance.labels, tokenizer, probe), lengths)


def stamp_of(job: Job) -> tuple[int, ...]:
    """Changes when a file of the job does."""
    files = [Path(name) for name in (job.data, job.validation, job.model) if name is not None]
    return tuple(file.stat().st_mtime_ns for file in files if file.exists())


# Ahead: several recipes played at the same time, each on a core of its own.
#
# Plays are Python from end to end, so threads would wait for one another. A forked process has everything loaded but
# torch's own threads, and plays need none. Where there is no fork, recipes are played
# one after the other when they are asked for.


_forked: Simulation | None = None


def trace_in_parallel(simulation: Simulation, recipes: Sequence[Recipe]) -> None:
    """Play what the recipes need and is not known yet."""
    global _forked
    needed = sorted(simulation.missing(recipes), key=_longest_first)
    if usable_cpus() < 2 or len(needed) < 2:
        return
    simulation.weigh()  # while the cores are free: among those who play, threads would wait for one another
    simulation.setup.load_code()
    _forked = simulation  # the processes inherit both
    try:
        fork = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(min(usable_cpus(), 4), fork, initializer=use_one_thread) as pool:
            for recipe, traced in zip(needed, pool.map(_trace_training, needed), strict=True):
                if traced is not None:
                    simulation.remember(recipe, traced)
    except (BrokenProcessPool, OSError):
        pass  # they are played when they are asked for
    finally:
        _forked = None


def _longest_first(recipe: Recipe) -> int:
    """So that no core waits for the other at the end; many strategies make a long play."""
    return -len(recipe.strategies)


def _trace_training(recipe: Recipe) -> TracedRecipe | None:
    """In a process of its own. What goes wrong there goes wrong again, aloud, when the recipe is asked for."""
    assert _forked is not None
    try:
        traced, _ = _forked.traced(recipe)
    except Exception:
        return None
    if (
        traced.parts.saves_only_trained
    ):  # a trunk and an adapter hold the model, which cannot go from process to process
        return None
    parts: Any = replace(traced.parts, model=None)
    return replace(traced, training=replace(traced.training, parts=parts))
