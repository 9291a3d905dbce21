"""Training setup: everything a training run needs, read, built and checked before anything is written."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from transformers import TrainingArguments, set_seed

from tightfit.activity import LOADING, READING, SIMULATING, activity
from tightfit.compat import FakeTensorMode, use_one_gpu
from tightfit.data.batches import LengthBuckets, num_steps
from tightfit.data.batching import Batching
from tightfit.data.columns import Columns
from tightfit.data.labels import Labels
from tightfit.data.language import detect_language
from tightfit.data.split import Split
from tightfit.data.tokens import Tokens
from tightfit.device import Device
from tightfit.engine.arguments import given_arguments, warmup
from tightfit.engine.assembly import assemble, parameter_groups
from tightfit.engine.class_loss import ClassLoss
from tightfit.engine.dataset import JobData, read_data
from tightfit.errors import BadInput, OutputError, RecipeError, first_line
from tightfit.job import Job
from tightfit.messages import Message, msg
from tightfit.models import load_tokenizer
from tightfit.runs.header import LengthStats, SmallerRecipe
from tightfit.runs.record import DataSummary
from tightfit.simulation.estimate import Estimate
from tightfit.simulation.job_simulation import Simulation, SimulationSetup
from tightfit.simulation.worst_case import Lengths
from tightfit.strategies.parts import Parts, Precision
from tightfit.strategies.recipe import Recipe
from tightfit.system.processes import run_in_fork
from tightfit.tasks import find_task, task_of
from tightfit.tasks.base import ModelInputs, Task
from tightfit.tasks.classes import class_weights
from tightfit.tasks.quality import Scoring
from tightfit.units import format_bytes, format_count

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transformers import PreTrainedTokenizerBase

    from tightfit.data.batching import BatchShape
    from tightfit.engine.meter import Meter
    from tightfit.planning.selection import Selection
    from tightfit.planning.training_recipe import Selector
    from tightfit.simulation.profile import StepProfile


LOGGING_STEPS = 10
KEEP_CHECKPOINTS = 2  # the best and the last
_HISTOGRAM_BINS = 32
_TEXTS_READ = 200  # to tell the language


@dataclass(frozen=True, kw_only=True)
class TrainingSetup:
    """A training run that is ready to start: all input read, the model built, nothing written yet."""

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
    """None if memory could not be estimated."""
    loss: ClassLoss | None = None
    """None if the head computes it."""
    notes: tuple[Message, ...]
    """What to tell the user before training starts."""
    selection: Selection | None = None
    """The recipe as planned, if there is a budget."""
    profile: StepProfile | None = None
    """The memory of one simulated step."""
    lengths: LengthStats | None = None
    smaller_recipes: list[SmallerRecipe] = field(default_factory=list)
    """Recipes that need less memory, as far as known without another simulation."""

    @property
    def steps(self) -> int:
        """Optimizer steps in total."""
        return num_steps(self.job, len(self.train))

    @property
    def scoring(self) -> Scoring:
        """How the run is scored."""
        return find_task(self.job.task).scoring(self.labels, self.job.metric)

    @property
    def model_inputs(self) -> ModelInputs:
        """What evaluations give the model."""
        return ModelInputs(self.split.validation, self.validation.dataset, self.tokenizer, self.labels)

    @property
    def data(self) -> DataSummary:
        """The training data in numbers, for the record."""
        return DataSummary(
            train_rows=len(self.train),
            validation_rows=len(self.validation),
            labels=self.labels.names,
            positive_label=self.labels.positive,
            text_columns=self.columns.text,
            label_columns=self.columns.label,
            truncated_rows=self.train.truncated,
            class_weights=self.loss.weights if self.loss else None,
            language=detect_language(_some_texts(find_task(self.job.task), self.split)),
        )


def _some_texts(task: Task, split: Split) -> list[str]:
    return [task.text_of(row) for row in split.train.__getitems__(range(min(len(split.train), _TEXTS_READ)))]


def prepare(
    job: Job,
    recipe: Recipe,
    device: Device,
    selector: Selector | None = None,
    meter: Meter | None = None,
    selected: Selection | None = None,
) -> TrainingSetup:
    """Read the data, build the model and apply the recipe, or the selected one, or what the selector finds.

    The meter excludes the memory that the estimate needs for a short time: small training steps that load library
    code, and the micro-benchmarks of this machine.
    """
    task = task_of(job)
    with activity(READING):
        data, tokenizer = read_data(job), load_tokenizer(job.model)
        train = task.tokenize(data.split.train, tokenizer, job.max_length, data.labels)
        validation = task.tokenize(data.split.validation, tokenizer, job.max_length, data.labels)
    clipped = job.clip_batch_size(len(train))
    lengths = Lengths.of(clipped, train.lengths, validation.lengths)
    targets = task.longest_target(data.split.train, tokenizer, job.max_length)
    simulation = Simulation(SimulationSetup.of(clipped, device, data.labels, tokenizer, targets), lengths)
    with meter.excluded() if meter is not None else contextlib.nullcontext():
        selection, prediction, prediction_notes = _select(recipe, selector, selected, simulation)
        recipe = selection.recipe if selection is not None else recipe
    set_seed(job.seed)  # the new head gets the same weights with every recipe
    with activity(LOADING):
        parts = assemble(simulation.setup.model, simulation.setup.settings, recipe, device)
    if parts.batching.max_length < job.max_length:
        train = task.tokenize(data.split.train, tokenizer, parts.batching.max_length, data.labels)
        validation = task.tokenize(data.split.validation, tokenizer, parts.batching.max_length, data.labels)
    return TrainingSetup(
        job=job,
        recipe=recipe,
        labels=data.labels,
        columns=data.columns,
        split=data.split,
        train=train,
        validation=validation.longest_first(),
        loss=ClassLoss.of(job, _class_weights(job, data)),
        tokenizer=tokenizer,
        parts=parts,
        estimate=prediction.estimate,
        profile=prediction.profile,
        smaller_recipes=prediction.smaller_recipes,
        lengths=length_stats(train, lengths, parts),
        selection=selection,
        notes=_each_once(
            *(selection.notes if selection else ()),
            *data.notes,
            *_batch_note(job, len(train)),
            *_inputs_note(train, len(data.split.train), parts.batching.max_length),
            *_truncation_note(train, parts.batching.max_length),
            *parts.notes,
            *prediction_notes,
            _training_note(parts),
        ),
    )


def _class_weights(job: Job, data: JobData) -> tuple[float, ...] | None:
    if job.class_weights is None:
        return None
    return class_weights(
        job.class_weights, data.labels, find_task(job.task).class_counts(data.split.train, data.labels)
    )


def _select(
    recipe: Recipe,
    selector: Selector | None,
    selected: Selection | None,
    simulation: Simulation,
) -> tuple[Selection | None, _Prediction, tuple[Message, ...]]:
    """The given recipe, the selected one or the selector's, with its prediction.

    Plan and prediction name the same peak: the size of the process is measured once for both.
    """
    simulation.overhead = selected.process_bytes if selected is not None else simulation.process_bytes()
    if selected is not None:
        return selected, *_predict_memory(selected.recipe, simulation)
    if selector is None:
        return None, *_predict_memory(recipe, simulation)
    if selector.tries_baseline:
        prediction, notes = _predict_memory(Recipe(), simulation)
        if prediction.estimate is None:  # a model that cannot be simulated
            return None, prediction, notes
        if (selection := selector.baseline(prediction.estimate)) is not None:
            return selection, prediction, notes
    selection = selector.select(simulation)
    return selection, *_predict_memory(selection.recipe, simulation)


def _each_once(*notes: Message) -> tuple[Message, ...]:
    """A plan and its prediction both say how large the process is."""
    return tuple(dict.fromkeys(notes))


@dataclass(frozen=True)
class _Prediction:
    """The results of a simulation."""

    estimate: Estimate | None = None
    profile: StepProfile | None = None
    smaller_recipes: list[SmallerRecipe] = field(default_factory=list)


def _predict_memory(recipe: Recipe, simulation: Simulation) -> tuple[_Prediction, tuple[Message, ...]]:
    """Estimate memory before the model is loaded; a model that cannot be simulated is still trained."""
    recipe.import_requirements()
    try:
        with activity(SIMULATING):
            if simulation.setup.device.kind == "cpu":  # in a fork, so that no memory of it stays in this process
                prediction = run_in_fork(_predict, simulation, recipe)
            else:  # it takes no GPU memory, and CUDA does not work in forks
                prediction = _predict(simulation, recipe)
        return prediction, prediction.estimate.notes if prediction.estimate else ()
    except RecipeError:
        raise
    except Exception as error:  # training may work even if its simulation fails
        return _Prediction(), (msg("memory could not be estimated: {reason}", reason=first_line(error)),)


def _predict(simulation: Simulation, recipe: Recipe) -> _Prediction:
    estimate = simulation.estimate(recipe)
    return _Prediction(estimate, simulation.profile(recipe), _smaller_recipes(simulation, recipe, estimate))


def _smaller_recipes(simulation: Simulation, recipe: Recipe, estimate: Estimate) -> list[SmallerRecipe]:
    """The recipe with half the micro-batch size, if the traces made so far suffice to estimate it."""
    rows = simulation.traced(recipe)[1].step_batching.micro_batch_rows
    if rows < 2 or recipe.steps_in_backward or not all(hints.same_ops_at_any_size for hints in recipe.hints):
        return []
    specs = [s.spec for s in recipe.strategies if s.exclusive != "micro-batch"]
    half = Recipe.parse([f"micro-batch:size={rows // 2}", *specs])
    if simulation.missing([half]):
        return []
    peak = simulation.estimate(half).peak
    return [SmallerRecipe(recipe=half.specs, peak_bytes=peak, result=half.result.value)] if peak < estimate.peak else []


def _batch_note(job: Job, rows: int) -> tuple[Message, ...]:
    if job.batch_size <= rows:
        return ()
    note = msg(
        "the batch size {batch:,} is larger than the {rows:,} training rows: every step uses all of them",
        batch=job.batch_size,
        rows=rows,
    )
    return (note,)


def _inputs_note(tokens: Tokens, rows: int, max_length: int) -> tuple[Message, ...]:
    """Where a task makes several model inputs of one row."""
    if len(tokens) == rows:
        return ()
    note = msg(
        "{rows:,} training rows make {inputs:,} inputs of at most {limit} tokens, which are batched as examples",
        rows=rows,
        inputs=len(tokens),
        limit=max_length,
    )
    return (note,)


def _truncation_note(tokens: Tokens, max_length: int) -> tuple[Message, ...]:
    if not tokens.truncated:
        return ()
    note = msg(
        "{truncated:,} of {rows:,} training texts ({share:.1%}) are longer than {limit} tokens and are truncated",
        truncated=tokens.truncated,
        rows=len(tokens),
        share=tokens.truncated / len(tokens),
        limit=max_length,
    )
    return (note,)


def _training_note(parts: Parts) -> Message:
    return msg(
        "Training {count} parameters on {device}, batches of {rows}{micro_batches}",
        count=format_count(parts.trainable_parameters),
        device=parts.device.label,
        rows=parts.batching.batch_size,
        micro_batches=_micro_batches(parts.batching),
    )


def _micro_batches(batching: Batching) -> Message | str:
    if batching.micro_batch_tokens is not None:
        return msg(" in micro-batches of {tokens} tokens", tokens=batching.micro_batch_tokens)
    if batching.micro_batch_rows < batching.batch_size:
        return msg(" in micro-batches of {rows}", rows=batching.micro_batch_rows)
    return ""


def length_stats(tokens: Tokens, lengths: Lengths, parts: Parts) -> LengthStats:
    """Lengths of the truncated training texts, and their padding with the recipe and in shuffled whole batches."""
    width = -(-parts.batching.max_length // _HISTOGRAM_BINS)
    counts = np.bincount((np.array(tokens.lengths) - 1) // width, minlength=-(-parts.batching.max_length // width))
    return LengthStats(
        limit=parts.batching.max_length,
        width=width,
        rows=counts.tolist(),
        padding_factor=_padding_factor(lengths, parts),
        padding_factor_unsorted=_padding_factor_unsorted(lengths, parts.batching.max_length),
        truncated_rows=tokens.truncated,
        tokens=sum(tokens.lengths),
        truncated_tokens=tokens.truncated_tokens,
    )


def _padding_factor(lengths: Lengths, parts: Parts) -> float:
    if encoder_batches := lengths.encoder_batches(parts):
        return _ratio(encoder_batches, sum(min(n, parts.batching.max_length) for n in lengths.train))
    sample = lengths.for_recipe(parts).sample()
    return round(parts.step_batching.computed_tokens(sample.batches) / int(sample.batches.sum()), 4)


def _padding_factor_unsorted(lengths: Lengths, max_length: int) -> float:
    batches = np.minimum(lengths.sample().batches, max_length)
    return _ratio([(int((b > 0).sum()), int(b.max())) for b in batches], int(batches.sum()))


def _ratio(computed: Iterable[BatchShape], tokens: int) -> float:
    return round(sum(rows * length for rows, length in computed) / tokens, 4)


def buckets_of(parts: Parts, tokens: Tokens) -> LengthBuckets | None:
    """The length buckets of a recipe; None if it uses none."""
    return parts.batching.buckets(tokens.lengths)


def training_arguments(
    job: Job, parts: Parts, folder: Path, report_to: list[str], keep_checkpoints: int = KEEP_CHECKPOINTS
) -> TrainingArguments:
    """The job as TrainingArguments; the batch size is the effective one, micro-batches are made in the step."""
    task = find_task(job.task)
    best = task.find_metric(job.metric)
    values: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": parts.batching.batch_size,
        "per_device_eval_batch_size": parts.step_batching.no_grad_rows,
        "num_train_epochs": job.epochs,
        "max_steps": job.max_steps or -1,
        "learning_rate": parts.learning_rate,
        "weight_decay": parts.weight_decay,
        "max_grad_norm": parts.max_grad_norm,
        "bf16": parts.precision is Precision.BF16,
        "fp16": parts.precision is Precision.FP16,
        "use_cpu": parts.device.kind == "cpu",
        "lr_scheduler_type": job.lr_scheduler_type,
        "warmup_steps": warmup(job),
        "label_smoothing_factor": job.label_smoothing_factor,
        "eval_strategy": "steps" if job.eval_steps else "epoch",
        "eval_steps": job.eval_steps,
        "save_strategy": "steps" if job.eval_steps else "epoch",  # the best can be loaded only if each is saved
        "save_steps": job.eval_steps or 1,
        "save_total_limit": max(1, keep_checkpoints),  # the best and the last are never removed while it trains
        "metric_for_best_model": best.name,
        "greater_is_better": best.greater_is_better,
        "load_best_model_at_end": True,
        "logging_steps": LOGGING_STEPS,
        "logging_first_step": True,
        "logging_nan_inf_filter": False,
        "seed": job.seed,
        "label_names": list(task.label_names),
        "dataloader_pin_memory": parts.device.kind == "cuda",
        "disable_tqdm": True,
        "report_to": report_to or "none",
    }
    arguments = _training_arguments({**values, **given_arguments(job.set)})
    assert arguments.device.type == parts.device.kind
    use_one_gpu(arguments)  # with several GPUs transformers would multiply the batch size and replicate the model
    return arguments


def _training_arguments(values: dict[str, Any]) -> TrainingArguments:
    try:
        return TrainingArguments(**values)
    except (ValueError, TypeError, ImportError) as error:  # what `--set` gives may not suit this machine or each other
        raise BadInput(msg("--set cannot be used as given: {reason}.", reason=first_line(error).rstrip("."))) from None


def check_disk_space(folder: Path, parts: Parts, checkpoints: int, features: int = 0) -> Message:
    """The disk space that a run takes: checkpoints that exist together, final weights, cached features.

    Raises OutputError if less is free.
    """
    weights = sum(parameter.nbytes for parameter in parts.model.parameters())
    state = run_in_fork(optimizer_bytes, parts)
    needed = checkpoints * (_saved_bytes(parts) + state) + weights + features
    free = shutil.disk_usage(_nearest_existing(folder)).free
    if free < needed:
        raise OutputError(
            msg(
                "The run needs {needed} of disk space for its checkpoints and {free} are free under '{folder}': "
                "free some, or put --out on another disk.",
                needed=format_bytes(needed),
                free=format_bytes(free),
                folder=folder,
            )
        )
    return msg(
        "the run takes up to {needed} of disk space ({count} checkpoints at a time, the model{more}); {free} are free",
        needed=format_bytes(needed),
        free=format_bytes(free),
        count=checkpoints,
        more=msg(" and the outputs of the frozen encoder") if features else "",
    )


def checkpoint_bytes(parts: Parts, optimizer: torch.optim.Optimizer | None) -> int:
    """Size of a checkpoint written now: its weights and, if it holds it, the optimizer state."""
    return _saved_bytes(parts) + (0 if optimizer is None else _state_bytes(optimizer))


def _saved_bytes(parts: Parts) -> int:
    """Tied weights are written once."""
    saved = {weight.data_ptr(): weight.nbytes for weight in parts.checkpoint_weights.values()}
    return sum(saved.values())


def optimizer_bytes(parts: Parts) -> int:
    """Size of the optimizer state, from one step of the same optimizer on fake tensors."""
    with FakeTensorMode():
        groups = [
            {**group, "params": [_fake_copy(parameter) for parameter in group["params"]]}
            for group in parameter_groups(parts)
        ]
        optimizer = parts.new_optimizer(groups)
        optimizer.step()
    return _state_bytes(optimizer)


def _state_bytes(optimizer: torch.optim.Optimizer) -> int:
    state = [value for values in optimizer.state.values() for value in values.values()]
    return sum(value.nbytes for value in state if isinstance(value, torch.Tensor))


def _fake_copy(parameter: nn.Parameter) -> nn.Parameter:
    copy = nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype))
    copy.grad = torch.empty_like(copy)
    return copy


def _nearest_existing(folder: Path) -> Path:
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
