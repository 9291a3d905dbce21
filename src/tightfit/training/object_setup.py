"""Setup from objects: a model, data sets, a collator and arguments that exist already, in place of a job's names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from tightfit.data.batch_spec import BatchSpec
from tightfit.device import Device
from tightfit.engine.assembly import StepSettings, assemble
from tightfit.engine.meter import Meter
from tightfit.engine.micro_batch_loss import model_loss
from tightfit.engine.model_source import GivenModel
from tightfit.errors import BadInput
from tightfit.messages import msg
from tightfit.simulation.estimate import Estimate
from tightfit.simulation.job_simulation import Simulation, SimulationSetup
from tightfit.simulation.worst_case import Lengths
from tightfit.strategies.parts import Parts
from tightfit.strategies.recipe import Recipe
from tightfit.system.processes import run_in_fork
from tightfit.training.preflight import find_worst_batch
from tightfit.training.trainer import Trainer

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, TrainingArguments

    from tightfit.data.batches import Batch

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
    recipe: Recipe
    device: Device
    compute_loss_func: Callable[..., torch.Tensor] | None = None

    def estimate(self) -> Estimate:
        """The memory of the training run, simulated on a copy of the model without weights."""
        simulation = Simulation(self._simulation_setup, self.lengths, overhead=self._simulation_setup.process_bytes())
        # In a fork, so that no memory of the simulation stays in this process.
        return run_in_fork(simulation.estimate, self.recipe)

    @cached_property
    def parts(self) -> Parts:
        """The model with the recipe applied."""
        setup = self._simulation_setup
        return assemble(setup.model, setup.settings, self.recipe, self.device)

    def trainer(self, meter: Meter, *, preflight: bool = True, **kwargs: Any) -> Trainer:
        """The trainer of the run; further arguments are those of transformers.Trainer."""
        train, validation = self._row_lengths(self.train_dataset), self._row_lengths(self.eval_dataset)
        buckets = self.parts.batching.buckets(train)
        worst = find_worst_batch(self._schedule, self.parts, train, validation, buckets) if preflight else None
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
        return Lengths.of(self._schedule, self._row_lengths(self.train_dataset), self._row_lengths(self.eval_dataset))

    @cached_property
    def batch_spec(self) -> BatchSpec:
        """The fields of a batch, learned from two that the collator makes: long rows, and short ones."""
        lengths = self._row_lengths(self.train_dataset)
        if len(lengths) < max(_PROBE_ROWS):
            raise BadInput(
                msg(
                    "The training data has {rows} rows: at least {needed} are needed.",
                    rows=len(lengths),
                    needed=max(_PROBE_ROWS),
                )
            )
        longest_first = sorted(range(len(lengths)), key=lambda row: -lengths[row])
        rows = longest_first[: _PROBE_ROWS[0]], longest_first[-_PROBE_ROWS[1] :]
        return BatchSpec.of(*(self.data_collator([self.train_dataset[row] for row in each]) for each in rows))

    @cached_property
    def _simulation_setup(self) -> SimulationSetup:
        settings = StepSettings(
            batch_size=self._schedule.batch_size,
            max_length=self.lengths.longest,
            learning_rate=self.args.learning_rate,
            weight_decay=self.args.weight_decay,
            max_grad_norm=self.args.max_grad_norm,
        )
        loss = model_loss if self.compute_loss_func is None else partial(_own_loss, self.compute_loss_func)
        return SimulationSetup(GivenModel(self.model), settings, self.device, self.batch_spec, loss=loss)

    @cached_property
    def _schedule(self) -> ArgumentsSchedule:
        args = self.args
        batch_size = min(args.per_device_train_batch_size, len(self.train_dataset))
        steps = args.max_steps if args.max_steps > 0 else None
        return ArgumentsSchedule(batch_size, args.num_train_epochs, steps, args.seed)

    def _row_lengths(self, dataset: Sequence[Any]) -> list[int]:
        return [len(dataset[row]["input_ids"]) for row in range(len(dataset))]


def _own_loss(loss: Callable[..., torch.Tensor], model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """The user's loss, called as transformers.Trainer does: the model does not get the labels."""
    inputs = dict(batch)
    labels = inputs.pop("labels")
    return loss(model(**inputs), labels, num_items_in_batch=len(labels))
