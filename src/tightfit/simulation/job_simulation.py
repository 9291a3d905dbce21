"""Simulation of a job on a device: trace each recipe once, and estimate its memory for any micro-batch size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from tightfit.compat import DataDependentOutputException, DynamicOutputShapeException
from tightfit.data.batch_spec import BatchSpec
from tightfit.data.batching import Batching, BatchShape, tokens_of
from tightfit.data.labels import Labels
from tightfit.device import Device
from tightfit.engine.assembly import StepSettings, assemble
from tightfit.engine.class_loss import ClassLoss
from tightfit.engine.dataset import prefetched_stats
from tightfit.engine.meter import resident_bytes
from tightfit.engine.micro_batch_loss import model_loss
from tightfit.engine.model_source import JobModel, ModelSource
from tightfit.errors import ModelError, TightfitError, first_line
from tightfit.job import Job
from tightfit.messages import Message, msg, verbatim
from tightfit.models import load_tokenizer, max_positions
from tightfit.simulation.caching_allocator import CachingAllocator
from tightfit.simulation.depth import extrapolate_depth, replace_optimizer_steps
from tightfit.simulation.estimate import Estimate, host_peak, lower_bound_of, phases_of
from tightfit.simulation.known_values import Unknowns, trace_answers
from tightfit.simulation.op_counts import MATMUL_16BIT, Table
from tightfit.simulation.process_size import bf16_code_bytes, process_bytes, process_size_note
from tightfit.simulation.profile import StepProfile, profile_of
from tightfit.simulation.replay import Replay
from tightfit.simulation.scaling import Array, NotExtrapolable, constant_sizes, fit_sizes, live_peak
from tightfit.simulation.simulate import BatchShapes, TracedTraining, fake_tensors, trace_training
from tightfit.simulation.timeline import Timeline
from tightfit.simulation.trace import Trace
from tightfit.simulation.worst_case import Lengths, WorstShapes
from tightfit.strategies.base import Changes
from tightfit.strategies.parts import Parts
from tightfit.strategies.recipe import Recipe
from tightfit.system.gpu_allocator import expandable_in_training
from tightfit.system.memory import usable_memory
from tightfit.system.processes import map_in_forks, usable_cpus
from tightfit.tasks import find_task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from tightfit.engine.micro_batch_loss import LossFn


_MIN_BLOCKS = 2  # the first and the last layer (or group of layers) may differ from those between


@dataclass(frozen=True)
class SimulationSetup:
    """What a simulation needs besides the recipe: the model, the fields of a batch, the settings and the device."""

    model: ModelSource
    settings: StepSettings
    device: Device
    batch: BatchSpec
    probe: bool = False
    """Whether a model whose code reads tensor values may be traced on real tensors."""
    job: Job | None = None
    """The job that it was made from."""
    loss: LossFn = model_loss

    @classmethod
    def of(
        cls,
        job: Job,
        device: Device,
        labels: Labels,
        tokenizer: PreTrainedTokenizerBase,
        targets: int = 0,
        *,
        probe: bool = False,
    ) -> SimulationSetup:
        """The setup of a job; `targets` is the most tokens that are to be written, where they are another axis."""
        batch = replace(find_task(job.task).batch_spec_for(labels), targets=targets)
        weights = [1.0] * len(labels.names) if job.class_weights else None
        loss = ClassLoss.of(job, weights) or model_loss
        return cls(JobModel(job, labels, tokenizer), StepSettings.of(job), device, batch, probe, job, loss)

    def trace(self, recipe: Recipe, shapes: Callable[[Parts], BatchShapes]) -> TracedTraining:
        """Trace a recipe at the model's full depth, extrapolated from two shallow traces where possible."""
        try:
            trace = partial(self._trace_by_depth, recipe, shapes)
            training, notes = trace_answers(trace, lambda training: live_peak(training.trace))
            return replace(training, notes=notes)
        except TightfitError:
            raise
        except Exception as error:  # a model's own code may fail in any way on tensors without data
            if self.probe and self.device.kind == "cpu":
                return self._trace_training(recipe, shapes, fake=False)
            raise ModelError(
                msg(
                    "'{model}' cannot be simulated: {reason}. "
                    "Add --probe to trace a small step on real tensors (--device cpu).",
                    model=self.model.name,
                    reason=_reason(error),
                )
            ) from error

    def _trace_by_depth(
        self, recipe: Recipe, shapes: Callable[[Parts], BatchShapes], unknowns: Unknowns
    ) -> TracedTraining:
        trace = partial(self._trace_training, recipe, shapes, unknowns=unknowns)
        for shallow, deeper, times in self._depths(recipe):
            try:
                return _with_depth(trace(layers=shallow), trace(layers=deeper), times)
            except NotExtrapolable:
                pass
        return trace()

    def _depths(self, recipe: Recipe) -> list[tuple[int, int, int]]:
        """Two shallow depths, and how many times their difference is to be added; none where that saves nothing."""
        depth, periods = self.model.depth, [hints.layer_period for hints in recipe.hints]
        if depth is None or None in periods:
            return []
        step = math.lcm(self.model.layer_period, *(period for period in periods if period is not None))
        min_layers = _MIN_BLOCKS * max((hints.layers_per_block for hints in recipe.hints), default=1)
        shallow = min_layers + (depth - min_layers) % step
        times = (depth - shallow) // step - 1
        return [(shallow, shallow + step, times)] if 2 * shallow + step < depth else []

    def _trace_training(
        self,
        recipe: Recipe,
        shapes: Callable[[Parts], BatchShapes],
        *,
        layers: int | None = None,
        fake: bool = True,
        unknowns: Unknowns | None = None,
    ) -> TracedTraining:
        model = self.model.without_weights()
        build = partial(assemble, model, self.settings, recipe, self.device, layers=layers)
        return trace_training(build, self.device, self.batch, shapes, self.loss, fake=fake, unknowns=unknowns)

    def weight_bytes(self, recipe: Recipe) -> int:
        """Bytes of the weights with a recipe, without a simulation of a step."""
        with fake_tensors(self.device):
            model = assemble(self.model.without_weights(), self.settings, recipe, self.device).model
            return sum(parameter.nbytes for parameter in model.parameters())

    def process_bytes(self) -> int:
        """Bytes of the process, or of the CUDA context, without any tensor."""
        self.model.import_code()
        measured = process_bytes(self.device, loads_weights=self.model.loads_weights)
        return measured - (self.model.resident_bytes if self.device.kind == "cpu" else 0)


def _with_depth(shallow: TracedTraining, deeper: TracedTraining, times: int) -> TracedTraining:
    op_counts = ((1 + times, deeper.op_counts[0][1]), (-times, shallow.op_counts[0][1]))
    return replace(
        deeper,
        trace=extrapolate_depth(shallow.trace, deeper.trace, times),
        parameters=deeper.parameters + times * (deeper.parameters - shallow.parameters),
        trainable_parameters=deeper.trainable_parameters
        + times * (deeper.trainable_parameters - shallow.trainable_parameters),
        op_counts=op_counts,
        optimizer_op_counts=op_counts,
    )


def _reason(error: Exception) -> Message:
    if isinstance(error, (DataDependentOutputException, DynamicOutputShapeException)):
        op = str(error.func)
        return msg("its code reads tensor values ({op}), which a simulation does not have", op=op)
    return verbatim(first_line(error).rstrip("."))


# Estimates for any number of recipes: recipes that differ only in rows and tokens are traced once.


_MAX_TRACED_LENGTH = 128
# Length of the second traced micro-batch in eighths of the first, tried in this order. On a CPU, attention's tiles hold
# several shorter texts and a single longer one, without the copies that several need: where the first length is among
# the longer and 7 eighths of it among the shorter, 9 eighths are not. GPU kernels prefer 96 tokens (6 eighths).
_SECOND_LENGTHS = {"cpu": (7, 9)}


@dataclass(frozen=True)
class TracedRecipe:
    """A traced recipe, and whether its sizes can be scaled to other rows and tokens."""

    training: TracedTraining
    timeline: Timeline
    is_scalable: bool

    @property
    def parts(self) -> Parts:
        """The parts, with fake tensors."""
        return self.training.parts

    def micro_batch_sizes(self, shapes: Sequence[BatchShape]) -> Array:
        """Bytes allocated for micro-batches of these shapes, to compare them; the first section is a micro-batch."""
        return self.timeline.sizes.of_section(0, shapes)

    def tables(self, pair: int) -> list[tuple[int, Table]]:
        """Op costs of a pair of equal sections as functions of rows and tokens, with their multiplicity."""
        training = self.training
        sections = _pairs(training.trace)[pair]
        return [(weight, counts.by_shape(training.trace.sections, sections)) for weight, counts in training.op_counts]


@dataclass
class Simulation:
    """Traces recipes and estimates their memory."""

    setup: SimulationSetup
    lengths: Lengths
    overhead: int | None = None
    """Bytes without any tensor, if known; measured in this process otherwise."""
    _traced: dict[tuple[str, ...], TracedRecipe] = field(default_factory=dict)
    _fixed: dict[Recipe, TracedRecipe] = field(default_factory=dict)

    @classmethod
    def of(cls, job: Job, device: Device, *, probe: bool = False) -> Simulation:
        """Read the data and the tokenizer; cached for the same job and unchanged files."""
        return _simulation(job, device, probe, modified_times(job))

    def estimate(self, recipe: Recipe) -> Estimate:
        """The memory estimate of a recipe with this job's data."""
        traced, parts = self.traced(recipe)
        worst = self._worst_shapes(parts, traced)
        shapes = _section_shapes(worst, traced)
        return Estimate(
            phases=phases_of(traced.timeline, self.setup.device, shapes, self._reserved(traced, worst)),
            host=host_peak(traced.timeline, shapes),
            overhead=self._overhead(traced),
            device=self.setup.device,
            parameters=traced.training.parameters,
            trainable_parameters=traced.training.trainable_parameters,
            worst=worst.about,
            notes=(*process_size_note(self.setup.device, self.process_bytes()), *traced.training.notes),
        )

    def _reserved(self, traced: TracedRecipe, worst: WorstShapes) -> dict[str, int] | None:
        """What a GPU's allocator reserves in each phase of the run."""
        if self.setup.device.kind != "cuda":
            return None
        allocator = CachingAllocator(expandable=expandable_in_training())
        return Replay(traced.training.trace, traced.timeline.sizes, traced.is_scalable, allocator).run(worst)

    def lower_bound(self, recipe: Recipe) -> int:
        """The peak without the allocator's share, which is slow to compute for a GPU."""
        traced, parts = self.traced(recipe)
        shapes = _section_shapes(self._worst_shapes(parts, traced), traced)
        return self._overhead(traced) + lower_bound_of(traced.timeline, shapes)

    def profile(self, recipe: Recipe) -> StepProfile | None:
        """The memory of one step over time, with the largest tensors at the peak."""
        traced, parts = self.traced(recipe)
        shapes = _section_shapes(self._worst_shapes(parts, traced), traced)
        return profile_of(traced.timeline, traced.training.trace, shapes, self.estimate(recipe).phase)

    def process_bytes(self) -> int:
        """Bytes without any tensor: measured once, before the first trace, since traces leave memory behind."""
        if self.overhead is None:
            self.overhead = self.setup.process_bytes()
        return self.overhead

    def _overhead(self, traced: TracedRecipe) -> int:
        """Bytes without any tensor; the code of matrix products in 16 bits is loaded where a recipe runs them."""
        counts = (counts for _, counts in traced.training.op_counts)
        if self.setup.device.kind != "cpu" or not any(MATMUL_16BIT in each.kinds for each in counts):
            return self.process_bytes()
        return self.process_bytes() + bf16_code_bytes()

    def traced(self, recipe: Recipe) -> tuple[TracedRecipe, Parts]:
        """The traced recipe, and its parts with this recipe's rows and tokens."""
        traced = self._known(recipe) or self._trace(recipe)
        return traced, self._with_shapes(traced.parts, recipe)

    def _known(self, recipe: Recipe) -> TracedRecipe | None:
        """An earlier trace of the same strategies, if it holds for this recipe's rows and tokens."""
        return self._traced.get(_key(recipe)) or self._fixed.get(recipe)

    def _with_shapes(self, parts: Parts, recipe: Recipe) -> Parts:
        """The parts with this recipe's rows and tokens instead of the traced ones; some reject micro-batches."""
        settings, depth = self.setup.settings, self.setup.model.depth
        batching = Batching(settings.batch_size, settings.max_length, chunk_rows=parts.batching.chunk_rows, depth=depth)
        parts = replace(parts, batching=batching)
        for strategy in recipe.in_order_of_application:
            if strategy.changes is Changes.BATCH or strategy.steps_in_backward:
                parts = strategy.apply(parts)
        return parts

    def _trace(self, recipe: Recipe) -> TracedRecipe:
        self.process_bytes()
        if _is_fixed(recipe):
            return self._trace_fixed(recipe)
        for training in self._probes(recipe):
            try:
                return self._traced.setdefault(_key(recipe), _with_scaling(training))
            except NotExtrapolable:
                pass
        return self._trace_fixed(recipe)

    def _probes(self, recipe: Recipe) -> Iterator[TracedTraining]:
        """Traces of two micro-batches, by other lengths where those before could not be scaled."""
        combined = self._combined(recipe)
        if combined is not None:
            yield combined
        else:
            for eighths in _SECOND_LENGTHS.get(self.setup.device.kind, (6,)):
                yield self.setup.trace(recipe, partial(self._probe_shapes, eighths))

    def missing(self, recipes: Iterable[Recipe]) -> list[Recipe]:
        """The recipes that have to be traced for the given ones and have not been."""
        needed = [part for recipe in recipes for part in _separate_parts(recipe) or (recipe,)]
        without_batching = [part if _is_fixed(part) else part.without_batching() for part in needed]
        return [recipe for recipe in dict.fromkeys(without_batching) if self._known(recipe) is None]

    def add(self, recipe: Recipe, traced: TracedRecipe) -> None:
        """Store a recipe that was traced in another process."""
        if traced.is_scalable:
            self._traced[_key(recipe)] = traced
        else:
            self._fixed[recipe] = traced

    def _combined(self, recipe: Recipe) -> TracedTraining | None:
        """Combine a trace of its forward and backward with one of its optimizer, instead of tracing the pair."""
        separate = _separate_parts(recipe)
        if separate is None:
            return None
        (gradients, _), (optimizer, _) = (self.traced(part) for part in separate)
        if not gradients.is_scalable or not optimizer.is_scalable:
            return None
        trace = replace_optimizer_steps(gradients.training.trace, optimizer.training.trace)
        return replace(gradients.training, trace=trace, optimizer_op_counts=optimizer.training.optimizer_op_counts)

    def _trace_fixed(self, recipe: Recipe) -> TracedRecipe:
        training = self.setup.trace(recipe, self._fixed_shapes)
        traced = TracedRecipe(training, Timeline.of(training.trace, constant_sizes(training.trace)), is_scalable=False)
        return self._fixed.setdefault(recipe, traced)

    def _probe_shapes(self, eighths: int, parts: Parts) -> BatchShapes:
        """Two shapes that differ by another ratio in each of rows, tokens, rows x tokens, tokens², rows x tokens²."""
        longest = min(self.setup.settings.max_length, _MAX_TRACED_LENGTH)
        second = min(longest * eighths // 8, max_positions(parts.model) or longest)
        inputs = ((6, longest), (4, max(1, second)))
        if parts.source.runs_encoder:
            return BatchShapes(inputs, inputs)
        pair = [(rows, parts.step_batching.max_length) for rows, _ in inputs]
        return BatchShapes(pair, pair, encoder=inputs)

    def _worst_shapes(self, parts: Parts, traced: TracedRecipe | None = None) -> WorstShapes:
        """The largest shapes; micro-batches are compared by their traced bytes where those are known."""
        size = traced.micro_batch_sizes if traced and traced.is_scalable else tokens_of
        return self.lengths.worst_shapes(parts, size)

    def _fixed_shapes(self, parts: Parts) -> BatchShapes:
        worst = self._worst_shapes(parts)
        return BatchShapes(worst.micro_batches, [worst.evaluation], worst.lengths, worst.encoder)


def _with_scaling(training: TracedTraining) -> TracedRecipe:
    """Raises NotExtrapolable where the memory or the time of other rows and tokens cannot be derived from it."""
    sizes = fit_sizes(training.trace, _pairs(training.trace))
    traced = TracedRecipe(training, Timeline.of(training.trace, sizes), is_scalable=True)
    for pair in range(len(_pairs(training.trace))):
        traced.tables(pair)
    return traced


def _is_fixed(recipe: Recipe) -> bool:
    return not all(hints.same_ops_at_any_size for hints in recipe.hints)


def _separate_parts(recipe: Recipe) -> tuple[Recipe, Recipe] | None:
    """Its gradient part and its optimizer part, where each can be traced without the other."""
    gradients, optimizer = recipe.gradient_part(), recipe.optimizer_part()
    inseparable = recipe.steps_in_backward or _is_fixed(recipe)
    return None if inseparable or recipe in (gradients, optimizer) else (gradients, optimizer)


def _key(recipe: Recipe) -> tuple[str, ...]:
    return tuple(recipe.without_batching().specs)


def _pairs(trace: Trace) -> list[tuple[int, int]]:
    """The pairs of traced sections: frozen encoder batches (where cached), micro-batches, evaluation batches."""
    return [(first, first + 1) for first in range(0, len(trace.sections), 2)]


def _section_shapes(worst: WorstShapes, traced: TracedRecipe) -> list[tuple[int, int] | None]:
    """The rows and tokens of every traced section; None leaves a section out."""
    if not traced.is_scalable:
        return [*worst.encoder, *worst.micro_batches, worst.evaluation]
    first_pass, later_passes = _padded_to_two([worst.first_step]), _padded_to_two(worst.micro_batches)
    encoder, no_encoder = ([*worst.encoder, None], [None, None]) if worst.encoder else ([], [])
    return [*encoder, *first_pass, worst.evaluation, None, *no_encoder, *later_passes, None, None]


def _padded_to_two(shapes: Sequence[tuple[int, int]]) -> list[tuple[int, int] | None]:
    return [*shapes, None][:2]


@lru_cache(maxsize=4)
def _simulation(job: Job, device: Device, probe: bool, modified: tuple[int, ...]) -> Simulation:
    import transformers.trainer  # noqa: F401, while the data is prefetched; forked workers inherit it

    stats, tokenizer = prefetched_stats(job), load_tokenizer(job.model)
    fitting = job.clip_batch_size(len(stats.train_lengths))
    lengths = Lengths.of(fitting, stats.train_lengths, stats.validation_lengths)
    setup = SimulationSetup.of(fitting, device, stats.labels, tokenizer, stats.targets, probe=probe)
    return Simulation(setup, lengths)


def modified_times(job: Job) -> tuple[int, ...]:
    """Modification times of the job's files, to detect changes."""
    files = [Path(name) for name in (job.data, job.validation, job.model) if name is not None]
    return tuple(file.stat().st_mtime_ns for file in files if file.exists())


# Parallel tracing, one recipe per core. Traces are pure Python, so threads would wait for each other. A forked process
# has everything loaded except torch's own threads, which traces do not need. Without fork, recipes are traced one
# after another on demand.


def trace_in_parallel(simulation: Simulation, recipes: Sequence[Recipe], budget: int | None = None) -> None:
    """Trace everything that the recipes need and that is not known yet, in forked processes.

    With a budget for this machine's memory, its processes together stay within that too.
    """
    needed = sorted(simulation.missing(recipes), key=_longest_first)
    simulation.process_bytes()  # while the cores are idle: its threads would compete with the workers
    simulation.setup.model.import_code()
    processes = min(usable_cpus(), _MAX_FORKS, _memory_left(budget) // _FORK_BYTES)
    if processes < 2 or len(needed) < 2:
        return
    for recipe, traced in map_in_forks(partial(_trace_in_worker, simulation), needed, processes):
        if traced is not None:
            simulation.add(recipe, traced)


def _memory_left(budget: int | None) -> int:
    """Bytes that this process and its forks may still allocate."""
    usable = usable_memory() if budget is None else min(usable_memory(), budget)
    return usable - resident_bytes()


_MAX_FORKS = 4
_FORK_BYTES = 192 << 20  # that one of them takes beside the pages it shares with this process


def _longest_first(recipe: Recipe) -> int:
    """Sort key: recipes with many strategies take longest to trace, and starting them first balances the cores."""
    return -len(recipe.strategies)


def _trace_in_worker(simulation: Simulation, recipe: Recipe) -> TracedRecipe | None:
    """Runs in a forked process; an error here is raised again when the recipe is traced on demand."""
    try:
        traced, _ = simulation.traced(recipe)
    except Exception:
        return None
    return replace(traced, training=replace(traced.training, parts=traced.parts.without_model()))
