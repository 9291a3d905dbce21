"""Arguments: a job and its parts in the words of transformers."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from transformers import TrainingArguments

from tightfit.compat import use_one_gpu
from tightfit.data.batches import LengthBuckets, num_steps
from tightfit.data.dataset import read_data
from tightfit.data.rows import Columns, Labels
from tightfit.data.split import Split
from tightfit.data.tokens import Tokens, encode
from tightfit.device import Device
from tightfit.engine.assembly import parameter_groups
from tightfit.errors import OutputError, RecipeError, first_line
from tightfit.job import Job
from tightfit.processes import run_in_fork
from tightfit.runs.header import Texts
from tightfit.runs.record import Data
from tightfit.simulation.estimate import Estimate
from tightfit.simulation.worst_case import Lengths
from tightfit.strategies.parts import Parts, Precision
from tightfit.strategies.recipe import Recipe
from tightfit.tasks import find_task
from tightfit.units import format_bytes, format_count

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from torch import nn
    from transformers import PreTrainedTokenizerBase

    from tightfit.engine.meter import Meter
    from tightfit.planning.select import Selection, Selector
    from tightfit.runs.header import SmallerRecipe
    from tightfit.simulation.profile import StepProfile
    from tightfit.simulation.scaling import BatchShape
    from tightfit.simulation.simulation import Simulation, SimulationSetup


LOGGING_STEPS = 10
SAVE_TOTAL_LIMIT = 2  # the best and the last


def training_arguments(job: Job, parts: Parts, folder: Path, report_to: list[str]) -> TrainingArguments:
    """The job in the words of transformers. The batch is the effective one; slices are the step's business."""
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=parts.batch_size,
        per_device_eval_batch_size=parts.evaluation_rows,
        num_train_epochs=job.epochs,
        max_steps=job.max_steps or -1,
        learning_rate=parts.learning_rate,
        weight_decay=parts.weight_decay,
        max_grad_norm=parts.max_grad_norm,
        bf16=parts.precision is Precision.BF16,
        fp16=parts.precision is Precision.FP16,
        use_cpu=parts.device.kind == "cpu",
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=SAVE_TOTAL_LIMIT,
        metric_for_best_model="f1",
        greater_is_better=True,
        load_best_model_at_end=True,
        logging_steps=LOGGING_STEPS,
        logging_first_step=True,
        logging_nan_inf_filter=False,
        seed=job.seed,
        label_names=["labels"],
        dataloader_pin_memory=parts.device.kind == "cuda",
        disable_tqdm=True,
        report_to=report_to or "none",
    )
    assert arguments.device.type == parts.device.kind
    use_one_gpu(arguments)  # with more cards transformers would multiply the batch and split the model's output
    return arguments


# Disk: whether there is room for what a run will write.


def check_disk_space(folder: Path, parts: Parts, checkpoints: int, features: int = 0) -> None:
    """The checkpoints that are there at once, the final weights and what is kept of the rows must all fit."""
    weights = sum(parameter.nbytes for parameter in parts.model.parameters())
    state = run_in_fork(optimizer_bytes, parts)
    needed = checkpoints * (_saved_bytes(parts) + state) + weights + features
    free = shutil.disk_usage(_nearest_existing(folder)).free
    if free < needed:
        raise OutputError(
            f"The run needs {format_bytes(needed)} of disk for its checkpoints and {format_bytes(free)} are free "
            f"under '{folder}': free some, or put --out on another disk."
        )


def checkpoint_bytes(parts: Parts, optimizer: torch.optim.Optimizer) -> int:
    """What a checkpoint takes now: the weights it holds and what the optimizer remembers."""
    return _saved_bytes(parts) + _state_bytes(optimizer)


def _saved_bytes(parts: Parts) -> int:
    """Weights that have several names are written once."""
    saved = {weight.data_ptr(): weight.nbytes for weight in parts.checkpoint_weights.values()}
    return sum(saved.values())


def optimizer_bytes(parts: Parts) -> int:
    """What the optimizer will remember: the same optimizer, stepped once on shapes without data."""
    from tightfit.compat import FakeTensorMode

    with FakeTensorMode():
        groups = [
            {**group, "params": [_shape_of(parameter) for parameter in group["params"]]}
            for group in parameter_groups(parts)
        ]
        optimizer = parts.optimizer(groups, parts.learning_rate)
        optimizer.step()
    return _state_bytes(optimizer)


def _state_bytes(optimizer: torch.optim.Optimizer) -> int:
    import torch

    state = [value for values in optimizer.state.values() for value in values.values()]
    return sum(value.nbytes for value in state if isinstance(value, torch.Tensor))


def _shape_of(parameter: nn.Parameter) -> nn.Parameter:
    import torch

    shape = torch.nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype))
    shape.grad = torch.empty_like(shape)
    return shape


def _nearest_existing(folder: Path) -> Path:
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())


# Texts: how long those of a training are, and what padding and cutting make of it.


_BARS = 32


def length_stats(tokens: Tokens, lengths: Lengths, parts: Parts) -> Texts:
    """Of the training rows as they are cut; padding as the recipe has it, and as whole batches would."""
    width = -(-parts.max_length // _BARS)
    bars = np.bincount((np.array(tokens.lengths) - 1) // width, minlength=-(-parts.max_length // width))
    return Texts(
        limit=parts.max_length,
        width=width,
        rows=bars.tolist(),
        padding_factor=_by_recipe(lengths, parts),
        padding_factor_unsorted=_by_chance(lengths, parts.max_length),
        truncated_rows=tokens.cut,
        tokens=sum(tokens.lengths),
        cut_tokens=tokens.lost,
    )


def _by_recipe(lengths: Lengths, parts: Parts) -> float:
    if parts.feature_cache:
        return _ratio(lengths.trunk_batches(parts), sum(min(n, parts.max_length) for n in lengths.train))
    dealt = lengths.dealt_to(parts).some()
    if parts.layer_rows:
        return dealt.tokens(parts) / int(dealt.batches.sum())
    return _ratio(dealt.slices(parts), int(dealt.batches.sum()))


def _by_chance(lengths: Lengths, longest: int) -> float:
    batches = np.minimum(lengths.some().batches, longest)
    return _ratio([(int((b > 0).sum()), int(b.max())) for b in batches], int(batches.sum()))


def _ratio(computed: Iterable[BatchShape], tokens: int) -> float:
    return round(sum(rows * length for rows, length in computed) / tokens, 4)


# Preparation: everything a training needs, read and checked before anything is written.


@dataclass(frozen=True, kw_only=True)
class TrainingSetup:
    """A training that can begin: all input read, the model built, nothing written yet."""

    job: Job
    recipe: Recipe
    labels: Labels
    columns: Columns
    split: Split
    train: Tokens
    validation: Tokens
    tokenizer: PreTrainedTokenizerBase
    parts: Parts
    estimate: Estimate | None
    """What it is expected to take, where that can be told."""
    notes: tuple[str, ...]
    """What the user should know before it begins."""
    selection: Selection | None = None
    """The recipe as it was planned, where there is a budget to keep to."""
    course: StepProfile | None = None
    """One step of the rehearsal."""
    texts: Texts | None = None
    smaller: list[SmallerRecipe] = field(default_factory=list)
    """Recipes that take less, as far as that is known without another rehearsal."""

    @property
    def steps(self) -> int:
        """How many there are to take."""
        return num_steps(self.job, len(self.train))

    @property
    def data(self) -> Data:
        """What is trained on, for the record."""
        return Data(
            train_rows=len(self.train),
            validation_rows=len(self.validation),
            labels=self.labels.names,
            text_columns=self.columns.text,
            label_column=self.columns.label or "",
            truncated_rows=self.train.cut,
        )


def prepare(
    job: Job, recipe: Recipe, device: Device, selector: Selector | None = None, meter: Meter | None = None
) -> TrainingSetup:
    """Read the data, build the model and put the recipe on it, or one that keeps to a budget.

    The meter leaves out what the forecast takes for a moment: the small steps that load the libraries' own code, and
    the samples that the machine's rates are measured with.
    """
    from tightfit.engine.assembly import assemble
    from tightfit.models import load_tokenizer
    from tightfit.simulation.simulation import SimulationSetup

    find_task(job.task)
    data = read_data(job)
    tokenizer = load_tokenizer(job.model)
    train = encode(data.split.train, tokenizer, job.max_length, data.labels)
    validation = encode(data.split.validation, tokenizer, job.max_length, data.labels)
    fitting = job.clip_batch_size(len(train))
    setup = SimulationSetup(fitting, device, data.labels, tokenizer)
    lengths = Lengths.of(fitting, train.lengths, validation.lengths)
    with meter.left_out() if meter is not None else contextlib.nullcontext():
        selection = selector.choose(setup, lengths) if selector is not None else None
        recipe = selection.recipe if selection is not None else recipe
        prediction, not_predicted = _predict_memory(recipe, setup, lengths)
    parts = assemble(fitting, recipe, device, data.labels, tokenizer)
    if parts.max_length < job.max_length:
        train = encode(data.split.train, tokenizer, parts.max_length, data.labels)
        validation = encode(data.split.validation, tokenizer, parts.max_length, data.labels)
    return TrainingSetup(
        job=job,
        recipe=recipe,
        labels=data.labels,
        columns=data.columns,
        split=data.split,
        train=train,
        validation=validation.longest_first(),
        tokenizer=tokenizer,
        parts=parts,
        estimate=prediction.estimate,
        course=prediction.course,
        smaller=prediction.smaller,
        texts=length_stats(train, lengths, parts),
        selection=selection,
        notes=(
            *(selection.notes if selection else ()),
            *data.notes,
            *_about_batch(job, len(train)),
            *_about_cut(train, parts.max_length),
            *parts.notes,
            *not_predicted,
            _about_training(parts),
        ),
    )


@dataclass(frozen=True)
class _Prediction:
    """What a rehearsal tells."""

    estimate: Estimate | None = None
    course: StepProfile | None = None
    smaller: list[SmallerRecipe] = field(default_factory=list)


def _predict_memory(recipe: Recipe, setup: SimulationSetup, lengths: Lengths) -> tuple[_Prediction, tuple[str, ...]]:
    """The bill, before the model takes its memory; a training that cannot be rehearsed is trained all the same."""
    from tightfit.processes import run_in_fork
    from tightfit.simulation.simulation import Simulation

    recipe.load()
    simulation = Simulation(setup, lengths, overhead=setup.overhead())
    on_card = setup.device.kind != "cpu"  # where it leaves nothing, and a driver does not like forks
    try:
        return (
            _predicted_in_fork(simulation, recipe) if on_card else run_in_fork(_predicted_in_fork, simulation, recipe)
        ), ()
    except RecipeError:
        raise
    except Exception as error:  # whatever a rehearsal stumbles over, the training itself may well run
        reason = first_line(error)
        return _Prediction(), (f"memory could not be foretold: {reason}",)


def _predicted_in_fork(simulation: Simulation, recipe: Recipe) -> _Prediction:
    estimate = simulation.estimate(recipe)
    return _Prediction(estimate, simulation.course(recipe), _smaller(simulation, recipe, estimate))


def _smaller(simulation: Simulation, recipe: Recipe, estimate: Estimate) -> list[SmallerRecipe]:
    """Half the slice, where what was played tells that too."""
    from tightfit.runs.header import SmallerRecipe

    rows = simulation.traced(recipe)[1].micro_batch_rows
    if rows < 2 or any(s.steps_in_backward or s.name == "chunked-layers" for s in recipe.strategies):
        return []
    specs = [s.spec for s in recipe.strategies if s.exclusive != "micro-batch"]
    half = Recipe.parse([f"micro-batch:size={rows // 2}", *specs])
    if simulation.missing([half]):
        return []
    peak = simulation.estimate(half).peak
    return [SmallerRecipe(recipe=half.specs, peak_bytes=peak, result=half.result.value)] if peak < estimate.peak else []


def buckets_of(parts: Parts, tokens: Tokens) -> LengthBuckets | None:
    """How rows of like length meet, where a recipe wants them to."""
    return LengthBuckets(tokens.lengths, parts.batch_size, parts.pool) if parts.pool else None


def _about_batch(job: Job, rows: int) -> tuple[str, ...]:
    if job.batch_size <= rows:
        return ()
    return (f"batches of {job.batch_size:,} are more than the {rows:,} training rows: every step takes all of them",)


def _about_cut(tokens: Tokens, max_length: int) -> tuple[str, ...]:
    if not tokens.cut:
        return ()
    share = f"{tokens.cut:,} of {len(tokens):,} training texts ({tokens.cut / len(tokens):.1%})"
    return (f"{share} are longer than {max_length} tokens and are cut",)


def _about_training(parts: Parts) -> str:
    slices = f" in slices of {parts.micro_batch_size}" if parts.micro_batch_size < parts.batch_size else ""
    if parts.micro_batch_tokens is not None:
        slices = f" in slices of {parts.micro_batch_tokens} tokens"
    return (
        f"Training {format_count(parts.trainable_parameters)} parameters on {parts.device.title}, "
        f"batches of {parts.batch_size}{slices}"
    )
