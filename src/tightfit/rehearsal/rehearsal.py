"""A job on a device, ready for any number of bills: what differs only in rows and tokens is played once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from tightfit.device import Device
from tightfit.job import Job
from tightfit.recipe import Recipe
from tightfit.rehearsal.bill import Bill, host_peak, least_of, moments_of
from tightfit.rehearsal.course import Course, course_of
from tightfit.rehearsal.largest import tokens_of
from tightfit.rehearsal.lengths import Lengths, Shapes
from tightfit.rehearsal.performing import Company
from tightfit.rehearsal.sizes import Extent, NotAlike, Numbers, fixed_sizes, learn_sizes
from tightfit.rehearsal.splice import splice
from tightfit.rehearsal.stage import Extents, Performance
from tightfit.rehearsal.tape import Tape
from tightfit.rehearsal.timeline import Timeline
from tightfit.rehearsal.work import Table
from tightfit.strategies.parts import Parts

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
    import tightfit.trainer  # noqa: F401, while the data is read beside; those who play inherit it
    from tightfit.data.beside import glance_beside
    from tightfit.weights import load_tokenizer

    glance, tokenizer = glance_beside(job), load_tokenizer(job.model)
    fitting = job.for_rows(len(glance.train))
    lengths = Lengths.of(fitting, glance.train, glance.validation)
    return Rehearsal(Company(fitting, device, glance.labels, tokenizer, probe), lengths)


def stamp_of(job: Job) -> tuple[int, ...]:
    """Changes when a file of the job does."""
    files = [Path(name) for name in (job.data, job.validation, job.model) if name is not None]
    return tuple(file.stat().st_mtime_ns for file in files if file.exists())
