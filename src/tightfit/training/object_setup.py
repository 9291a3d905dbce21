"""Setup from objects: a model, data sets, a collator and arguments that exist already, in place of a job's names."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers.trainer_utils import has_length

from tightfit.data.batch_spec import BatchSpec
from tightfit.data.micro_batches import is_splittable, shape_of
from tightfit.device import Budget, Device
from tightfit.engine.assembly import StepSettings, assemble
from tightfit.engine.meter import Meter
from tightfit.engine.micro_batch_loss import model_loss
from tightfit.engine.model_source import GivenModel
from tightfit.errors import BadInput
from tightfit.messages import msg
from tightfit.planning.constraints import Constraints
from tightfit.planning.plan import Plan
from tightfit.planning.planner import Planner
from tightfit.simulation.estimate import Estimate
from tightfit.simulation.job_simulation import Simulation, SimulationSetup
from tightfit.simulation.worst_case import Lengths
from tightfit.strategies.adamw import AdamW
from tightfit.strategies.parts import Parts
from tightfit.strategies.recipe import Recipe
from tightfit.system.processes import run_in_fork
from tightfit.timing import step_time_on
from tightfit.training.preflight import find_worst_batch
from tightfit.training.trainer import Trainer

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, TrainingArguments

    from tightfit.data.batches import Batch
    from tightfit.engine.micro_batch_loss import LossFn
    from tightfit.strategies.parts import OptimizerFactory

_PROBE_ROWS = 2, 3  # two batches that differ in rows


@dataclass(frozen=True)
class ArgumentsSchedule:
    """What determines the batches of a training run, from TrainingArguments."""

    batch_size: int
    epochs: float
    max_steps: int | None
    seed: int


@dataclass(frozen=True, kw_only=True)
class ObjectSetup:
    """A training run of objects. The model is changed in place once `parts` are made, not by an estimate."""

    model: PreTrainedModel
    args: TrainingArguments
    train_dataset: Any
    eval_dataset: Any
    data_collator: Callable[[list[Any]], Any]
    device: Device
    recipe: Recipe = field(default_factory=Recipe)
    compute_loss_func: Callable[..., torch.Tensor] | None = None
    loss: LossFn = model_loss
    """The loss of a micro-batch, unless `compute_loss_func` is given."""
    optimizer: OptimizerFactory = AdamW().build
    """The optimizer, where no strategy replaces it."""
    shuffles: bool = True
    """Whether batches are drawn at random; otherwise the longest rows are assumed to share a batch."""
    max_length: int | None = None
    """Tokens of the longest row of a data set that can only be iterated."""

    def plan(self, budget: Budget, constraints: Constraints) -> Plan:
        """The fastest recipe that fits; DoesNotFit if none does. The given recipe is not used."""
        planner = Planner(self._simulation, step_time_on(self.device))
        return run_in_fork(planner.plan, budget, constraints)  # so that no memory of it stays in this process

    def estimate(self) -> Estimate:
        """The memory of the training run, simulated on a copy of the model without weights."""
        # In a fork, so that no memory of the simulation stays in this process.
        return run_in_fork(self._simulation.estimate, self.recipe)

    @cached_property
    def _simulation(self) -> Simulation:
        setup = self._simulation_setup
        return Simulation(setup, self.lengths, overhead=setup.process_bytes() + _held_on_gpu(self.model, self.device))

    @cached_property
    def parts(self) -> Parts:
        """The model with the recipe applied."""
        setup = self._simulation_setup
        return assemble(setup.model, setup.settings, self.recipe, self.device)

    def trainer(self, meter: Meter, *, preflight: bool = True, **kwargs: Any) -> Trainer:
        """The trainer of the run; further arguments are those of transformers.Trainer."""
        train, validation = self._train_lengths, self._validation_lengths
        buckets = self.parts.batching.buckets(train)
        worst = find_worst_batch(self.schedule, self.parts, train, validation, buckets) if preflight else None
        return Trainer(
            parts=self.parts,
            meter=meter,
            buckets=buckets,
            worst=worst,
            args=self.args,
            train_dataset=self.train_dataset,
            eval_dataset=self.eval_dataset,
            data_collator=self.data_collator,
            compute_loss_func=self.compute_loss_func,
            **kwargs,
        )

    @cached_property
    def lengths(self) -> Lengths:
        """The batches of the run, from the lengths of all rows."""
        if not self.shuffles:
            longest = sorted(self._train_lengths, reverse=True)[: self.schedule.batch_size]
            validation = tuple(sorted(self._validation_lengths, reverse=True))
            per_epoch = math.ceil(len(self._train_lengths) / self.schedule.batch_size)
            return Lengths(np.array([longest]), validation, per_epoch, train=tuple(self._train_lengths))
        return Lengths.of(self.schedule, self._train_lengths, self._validation_lengths)

    @cached_property
    def batch_spec(self) -> BatchSpec:
        """The fields of a batch, learned from two that the collator makes: long rows, and short ones."""
        rows = self._probe_rows
        if len(rows) < max(_PROBE_ROWS):
            raise BadInput(
                msg(
                    "The training data has {rows} rows: at least {needed} are needed.",
                    rows=len(rows),
                    needed=max(_PROBE_ROWS),
                )
            )
        probes = rows[: _PROBE_ROWS[0]], rows[-_PROBE_ROWS[1] :]
        batches = [self.data_collator(list(each)) for each in probes]
        for batch, count in zip(batches, _PROBE_ROWS, strict=True):
            _check_rows(batch, count)
        return BatchSpec.of(*batches)

    @cached_property
    def _probe_rows(self) -> list[Any]:
        """Some rows, longest first, with the one of the longest labels among the first two."""
        if not has_length(self.train_dataset):
            rows = list(itertools.islice(iter(self.train_dataset), sum(_PROBE_ROWS)))
            return sorted(rows, key=self._row_length, reverse=True)
        lengths = self._train_lengths
        order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
        if len(order) > sum(_PROBE_ROWS):
            most_labels = max(order, key=lambda row: _label_length(self.train_dataset[row]))
            order = list(dict.fromkeys((order[0], most_labels, order[1], *order[-_PROBE_ROWS[1] :])))
        return [self.train_dataset[row] for row in order]

    @cached_property
    def _simulation_setup(self) -> SimulationSetup:
        settings = StepSettings(
            batch_size=self.schedule.batch_size,
            max_length=self.lengths.longest,
            learning_rate=self.args.learning_rate,
            weight_decay=self.args.weight_decay,
            max_grad_norm=self.args.max_grad_norm,
            own_optimizer=self.optimizer,
        )
        loss = self.loss if self.compute_loss_func is None else partial(_own_loss, self.compute_loss_func)
        return SimulationSetup(GivenModel(self.model), settings, self.device, self.batch_spec, loss=loss)

    @cached_property
    def schedule(self) -> ArgumentsSchedule:
        """What determines the batches."""
        args, rows = self.args, len(self._train_lengths)
        steps = args.max_steps if args.max_steps > 0 else None
        seed = args.seed if args.data_seed is None else args.data_seed
        return ArgumentsSchedule(min(args.train_batch_size, rows), args.num_train_epochs, steps, seed)

    @cached_property
    def _train_lengths(self) -> list[int]:
        if has_length(self.train_dataset):
            return self._row_lengths(self.train_dataset)
        if self.max_length is None:
            raise BadInput(
                msg("The training data can only be iterated: give max_length, the tokens of its longest row.")
            )
        return [self.max_length] * self.args.train_batch_size

    @cached_property
    def _validation_lengths(self) -> list[int]:
        """One token where nothing is evaluated."""
        given = self.eval_dataset
        datasets = list(given.values()) if isinstance(given, Mapping) else [given] if given is not None else []
        if any(not has_length(dataset) for dataset in datasets):
            return [self.max_length or max(self._train_lengths)] * self.args.eval_batch_size
        return [length for dataset in datasets for length in self._row_lengths(dataset)] or [1]

    def _row_lengths(self, dataset: Sequence[Any]) -> list[int]:
        if len(dataset) and self._has_no_tokens(dataset[0]):
            return [1] * len(dataset)
        return [self._row_length(dataset[row]) for row in range(len(dataset))]

    def _has_no_tokens(self, row: Any) -> bool:
        return not _is_tokenized(row) and shape_of(self.data_collator([row]))[1] == 1

    def _row_length(self, row: Any) -> int:
        """Tokens that are not padding; those of rows in another form are counted in a batch of one row."""
        if not _is_tokenized(row):
            return shape_of(self.data_collator([row]))[1]
        mask = row.get("attention_mask")
        return len(row["input_ids"]) if mask is None else max(1, _used(mask))


def _is_tokenized(row: Any) -> bool:
    return isinstance(row, Mapping) and "input_ids" in row and hasattr(row["input_ids"], "__len__")


def _used(mask: Any) -> int:
    """The columns from the first to the last that are not padding."""
    used = np.flatnonzero(np.asarray(mask))
    return int(used[-1] - used[0]) + 1 if len(used) else 0


def _label_length(row: Any) -> int:
    labels = row.get("labels") if isinstance(row, Mapping) else None
    return 0 if labels is None or not np.ndim(labels) else len(labels)


def _check_rows(batch: Any, rows: int) -> None:
    if not is_splittable(batch) or shape_of(batch)[0] != rows:
        raise BadInput(
            msg(
                "The collator makes a batch of {rows} rows that is not a mapping to tensors with {rows} rows each: "
                "its memory cannot be planned, leave out budget.",
                rows=rows,
            )
        )


def _held_on_gpu(model: torch.nn.Module, device: Device) -> int:
    """Bytes of the GPU that this process has allocated already, without those of the model."""
    import torch

    if device.kind != "cuda" or not torch.cuda.is_initialized():
        return 0
    weights = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in (*model.parameters(), *model.buffers())
        if tensor.is_cuda
    }
    return max(0, torch.cuda.memory_allocated(device.name) - sum(weights.values()))


def _own_loss(loss: Callable[..., torch.Tensor], model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """The user's loss, called as transformers.Trainer does: the model does not get the labels."""
    inputs = dict(batch)
    labels = inputs.pop("labels")
    return loss(model(**inputs), labels, num_items_in_batch=len(labels))
