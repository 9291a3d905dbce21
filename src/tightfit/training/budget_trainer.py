"""transformers.Trainer with a memory budget: the user's own script, with another import and one more argument.

Without a budget it trains as transformers does, to the bit where accumulated gradients are right there, and repeats a
step that runs out of memory. With one it simulates the model, the data and the settings that it was given, and trains
with the recipe that was planned for them.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import transformers

from tightfit.compat import reset_accelerator_state
from tightfit.data.batches import BucketSampler
from tightfit.data.batching import Batching
from tightfit.data.micro_batches import RowLimits, is_splittable, shape_of
from tightfit.device import KINDS, Budget, Device, find_device
from tightfit.display import show
from tightfit.engine.assembly import parameter_groups
from tightfit.engine.meter import meter_for
from tightfit.engine.micro_batch_loss import label_counts, weighted_micro_batches
from tightfit.engine.oom import release_memory_on_error
from tightfit.errors import BadInput, OutOfMemory
from tightfit.messages import Message, msg
from tightfit.planning.constraints import Constraints
from tightfit.planning.plan import Plan
from tightfit.simulation.estimate import Estimate
from tightfit.strategies import STRATEGIES
from tightfit.strategies.adamw import AdamW
from tightfit.strategies.base import Result, Strategy
from tightfit.strategies.bf16_weights import BF16Weights
from tightfit.strategies.micro_batch import MicroBatch
from tightfit.strategies.offload_optimizer import OffloadOptimizer
from tightfit.strategies.parts import Parts, Precision
from tightfit.system.memory import trim_malloc, tuned_malloc
from tightfit.system.processes import process_lock
from tightfit.training.folding import OPTIMIZERS, Folded, fold
from tightfit.training.loss_scaling import ItemCount
from tightfit.training.memory_limit import limit_memory
from tightfit.training.memory_report import MemoryReport
from tightfit.training.object_setup import ObjectSetup
from tightfit.training.recovering_trainer import RecoveringTrainer
from tightfit.training.recovery import PartialStep, Recovery
from tightfit.training.rng_state import RngState, preserved_rng

if TYPE_CHECKING:
    from tightfit.data.batches import Batch

_UNBOUNDED = 1 << 30
"""The tokens of the longest row, where nothing is planned."""
_WRAPPING_OPTIMIZERS = (OffloadOptimizer.name, BF16Weights.name)


class MemoryBudgetMixin(RecoveringTrainer):
    """Gives any subclass of transformers.Trainer a memory budget: `class MyTrainer(MemoryBudgetMixin, SFTTrainer)`."""

    splits_batches = True
    """Whether the loss of a batch is the mean over its rows; False where rows are compared with each other."""

    def __init__(
        self,
        *args: Any,
        budget: str | int | None = None,
        use: str | Sequence[str] = (),
        avoid: Sequence[str] = (),
        allow: str = "close",
        max_length: int | None = None,
        **kwargs: Any,
    ) -> None:
        """The arguments of the trainer itself, and:

        `budget`: "4GB", bytes, or "auto" for what the device has free now; None to plan nothing. `use`, `avoid` and
        `allow` are those of `tightfit.plan`. `max_length`: tokens of the longest row of a data set that can only be
        iterated.
        """
        self._items: ItemCount | None = None
        self._setup: ObjectSetup | None = None
        super().__init__(*args, **kwargs)
        self._device = _device_of(self.args)
        self.plan: Plan | None = None
        """The plan for the budget; None without one."""
        self.events: list[Message] = []
        """What was planned, and what happened since: recoveries from out-of-memory errors."""
        self._step = StepBatches()
        if budget is None:
            self._use(self._own_parts())
        else:
            with preserved_rng():
                self._plan(budget, [use] if isinstance(use, str) else use, avoid, allow, max_length)
        trim_malloc()
        self.meter = meter_for(self._device)

    def report(self) -> MemoryReport:
        """Predicted beside measured memory by phase, and what happened."""
        estimate: Estimate | None = self.plan.chosen.estimate if self.plan is not None else None
        return MemoryReport(estimate, self.meter.measured, tuple(self.events), str(self._device.label))

    # The plan

    def _plan(
        self, budget: str | int, use: Sequence[str], avoid: Sequence[str], allow: str, max_length: int | None
    ) -> None:
        if self.train_dataset is None:
            raise BadInput(msg("A budget needs train_dataset: what is trained on decides how much memory is needed."))
        folded = fold(self.args)
        constraints = self._constraints(folded, use, avoid, allow)
        self._fold_into(folded.args)
        self._setup = setup = ObjectSetup(
            model=self.model,
            args=folded.args,
            train_dataset=self.train_dataset,
            eval_dataset=self.eval_dataset,
            data_collator=self._get_collator_with_removed_columns(self.data_collator),
            device=self._device,
            loss=self._simulated_loss,
            optimizer=self._own_optimizer(),
            shuffles=folded.args.train_sampling_strategy == "random",
            max_length=max_length,
        )
        with process_lock.held(), tuned_malloc():
            trim_malloc()
            self.plan = setup.plan(Budget.of(budget, self._device), constraints)
        self._setup = replace(setup, recipe=self.plan.recipe)
        for note in (*folded.notes, self.plan.summary, *self.plan.reasons):
            self._log(note)
        self._use(self._setup.parts)

    def _constraints(self, folded: Folded, use: Sequence[str], avoid: Sequence[str], allow: str) -> Constraints:
        constraints = Constraints.of((*folded.pinned, *use), (), allow)
        for strategy in constraints.pinned:
            if why := _why_not(type(strategy)):
                raise BadInput(why)
        avoided = {*avoid, *folded.avoided, *(kind.name for kind in STRATEGIES.values() if _why_not(kind))}
        if self._has_own_optimizer:
            avoided |= {*OPTIMIZERS, *_WRAPPING_OPTIMIZERS}
        if not self.splits_batches:
            avoided.add(MicroBatch.name)
        pinned = {strategy.name for strategy in constraints.pinned}
        return Constraints.of([s.spec for s in constraints.pinned], sorted(avoided - pinned), allow)

    def _fold_into(self, args: transformers.TrainingArguments) -> None:
        self.args, self._train_batch_size = args, args.train_batch_size

    @property
    def _has_own_optimizer(self) -> bool:
        """Whether the optimizer is an object, or made by an override: then nothing can replace or wrap it."""
        return self.optimizer is not None or _overrides(self, "create_optimizer")

    def _own_optimizer(self) -> Any:
        """A factory of the optimizer that transformers would make of the settings, or of one like the given object."""
        if self.optimizer is not None:
            return partial(_make_optimizer, type(self.optimizer), self.optimizer.defaults)
        if _overrides(self, "create_optimizer"):
            return AdamW().build
        given = self.optimizer_cls_and_kwargs
        kind, settings = given or self.get_optimizer_cls_and_kwargs(self.args, self.model)
        if not isinstance(kind, type) or not issubclass(kind, torch.optim.Optimizer) or "params" in settings:
            raise BadInput(
                msg("{settings} cannot be planned for: leave out budget, or that.", settings=self.args.optim)
            )
        return partial(_make_optimizer, kind, settings)

    def _simulated_loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        counts_labels = "labels" in batch and (self.model_accepts_loss_kwargs or self.compute_loss_func is not None)
        items = {"num_items_in_batch": torch.tensor(len(batch["labels"]))} if counts_labels else {}
        loss: torch.Tensor = self.compute_loss(model, dict(batch), **items)
        return loss

    # The parts

    def _own_parts(self) -> Parts:
        """A step as transformers takes it."""
        return Parts(
            model=self.model,
            device=self._device,
            optimizer=AdamW().build,
            batching=Batching(self.args.train_batch_size, _UNBOUNDED),
            learning_rate=self.args.learning_rate,
            weight_decay=self.args.weight_decay,
            max_grad_norm=self.args.max_grad_norm,
        )

    def _use(self, parts: Parts) -> None:
        self.parts, self.recovery = parts, Recovery(parts, self._log)
        if self.plan is None:
            rows = max(self.args.train_batch_size, self.args.eval_batch_size)
            self.recovery.evaluation_limits = RowLimits(rows, where="evaluation")
        self.args.max_grad_norm = parts.max_grad_norm
        self._use_precision(parts.precision)
        _measure_backward(self)

    def _use_precision(self, precision: Precision) -> None:
        """accelerate's state is made anew where the plan computes in another format than the user has set."""
        if precision is Precision.FP32 or self.args.bf16 or self.args.fp16:
            return
        self.args.bf16, self.args.fp16 = precision is Precision.BF16, precision is Precision.FP16
        self.args.mixed_precision = precision.value
        reset_accelerator_state()
        self.create_accelerator_and_postprocess()

    def call_model_init(self, trial: Any = None) -> Any:
        """A new model gets the same recipe."""
        model = super().call_model_init(trial)
        if self._setup is not None:
            self._setup = replace(self._setup, model=model)
            self._use(self._setup.parts)
        return model

    def _log(self, line: Message) -> None:
        self.events.append(line)
        if self.is_world_process_zero():
            show(line)

    # Training

    @release_memory_on_error
    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As in transformers; running out of memory raises an error that can be recovered from."""
        try:
            with self._limited():
                return super().train(*args, **kwargs)
        except PartialStep as error:
            raise OutOfMemory(
                msg("{message}; some weights were already updated: resume from a checkpoint.", message=error.message)
            ) from None

    @contextlib.contextmanager
    def _limited(self) -> Iterator[None]:
        """The process is limited to the budget, or to what the machine has."""
        budget = self.plan.budget if self.plan is not None and not self.plan.budget.is_auto else None
        needed = self.plan.chosen.upper_bound if self.plan is not None else None
        size = budget.size if budget is not None else None
        with process_lock.held(), tuned_malloc(), limit_memory(self._device, self._log, size, needed):
            yield

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> Any:
        """The batches of the next optimizer step, which is repeated from the first one if memory runs out."""
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        self._step = StepBatches(tuple(batches), self._counts(batches), RngState())
        return batches, items

    def _counts(self, batches: Sequence[Any]) -> tuple[float, ...]:
        """The labels of each batch; none where batches cannot be split, or other processes have some of them."""
        if self.args.world_size > 1 or self.args.n_gpu > 1 or not all(map(is_splittable, batches)):
            return ()
        return tuple(sum(label_counts(self.model, batch)) for batch in batches)

    def training_step(self, model: torch.nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Forward and backward of a batch, in as many micro-batches as the plan or an out-of-memory error requires."""
        step, number = self._step, self._step.number_of(inputs)
        if number is None or not self.splits_batches:
            self._items = None
            return super().training_step(model, inputs, num_items_in_batch)
        # An out-of-memory error drops the gradients of the step: then its earlier batches are repeated, too.
        first = itertools.chain([number], itertools.repeat(0))

        def attempt() -> torch.Tensor:
            if (start := next(first)) < number:
                step.rng.restore()
            return [self._train_on(model, each, num_items_in_batch) for each in range(start, number + 1)][-1]

        return self.recovery.train(attempt, self.inner_optimizer, self.state.global_step)

    def _train_on(self, model: torch.nn.Module, number: int, items: Any) -> torch.Tensor:
        """A batch of the step, each of its micro-batches as transformers trains on a batch."""
        step, losses = self._step, [torch.zeros((), device=self.args.device)]
        weighted = self._micro_batches(step.batches[number]) if step.counts[number] else ()
        for weight, micro_batch in self.recovery.tracking(weighted):
            self._items = ItemCount.of(items) if isinstance(items, torch.Tensor) else None
            # By this the loss is divided, unless it was divided by the number of labels.
            self.current_gradient_accumulation_steps = sum(step.counts) / step.counts[number] / weight
            with self.meter.phase("forward"):
                losses.append(super().training_step(model, micro_batch, self._items))
        return torch.stack(losses).sum() if len(losses) > 2 else losses[-1]

    def _micro_batches(self, batch: Batch) -> Iterable[tuple[float, Batch]]:
        """The micro-batches with their shares; without a plan, the batch as it is, unless memory has run out before."""
        limits, (rows, tokens) = self.recovery.micro_batch_limits, shape_of(batch)
        if self.plan is None and rows <= limits.rows_for(tokens):
            return [(1.0, batch)]
        return weighted_micro_batches(
            self.model, self._prepare_inputs(batch), limits, sort=self.parts.step_batching.sorts
        )

    @property
    def loss_is_scaled_for_ga(self) -> bool | None:
        """Whether the loss was divided by the number of labels, if nothing else is stated: seen by its use."""
        stated = self._stated_scaling if self._stated_scaling is not None else super().loss_is_scaled_for_ga
        return stated if stated is not None or self._items is None else self._items.used

    @loss_is_scaled_for_ga.setter
    def loss_is_scaled_for_ga(self, value: bool | None) -> None:
        self._stated_scaling = value

    _stated_scaling: bool | None = None

    def _clip_grad_norm(self, model: torch.nn.Module) -> Any:
        with self.meter.phase("step"):
            return super()._clip_grad_norm(model)

    def create_optimizer(self, model: torch.nn.Module | None = None) -> Any:
        """The planned optimizer, or the user's own."""
        setup, parts = self._setup, self.parts
        replaced = setup is not None and (parts.optimizer is not setup.optimizer or bool(parts.optimizer_wrappers))
        if self.optimizer is None and replaced:
            self.optimizer = parts.new_optimizer(parameter_groups(parts))
        return super().create_optimizer(model) if self.optimizer is None else self.optimizer

    def _wrap_model(self, model: torch.nn.Module, training: bool = True, dataloader: Any = None) -> Any:
        """Called once the optimizer exists, whoever has made it, and before accelerate wraps it."""
        if training and self.optimizer is not None and self.inner_optimizer is not self._recovering:
            self._recovering = self._take_over(self.inner_optimizer)
        return super()._wrap_model(model, training, dataloader)

    _recovering: torch.optim.Optimizer | None = None
    """The optimizer whose steps are repeated after an out-of-memory error."""

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
        setup = self._setup
        buckets = self.parts.batching.buckets(setup.lengths.train) if setup is not None else None
        if setup is None or buckets is None:
            return super()._get_train_sampler(*args, **kwargs)
        return BucketSampler(buckets, setup.schedule.seed)

    # Phases outside of a training step

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Measured as the phase `evaluate`."""
        with self.meter.phase("evaluate"):
            return super().evaluation_loop(*args, **kwargs)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        with self.meter.phase("save"):
            return super()._save_checkpoint(*args, **kwargs)

    def _load_best_model(self) -> None:
        with self.meter.phase("load-best"):
            super()._load_best_model()


class Trainer(MemoryBudgetMixin):
    """transformers.Trainer with a memory budget, correct gradient accumulation and out-of-memory recovery."""


class Seq2SeqTrainer(MemoryBudgetMixin, transformers.Seq2SeqTrainer):
    """transformers.Seq2SeqTrainer with a memory budget."""


@dataclass(frozen=True)
class StepBatches:
    """The batches of an optimizer step, and the random state before the first of them."""

    batches: tuple[Any, ...] = ()
    counts: tuple[float, ...] = ()
    """The labels in each; empty where batches cannot be split, or other processes have some of them."""
    rng: RngState = field(default_factory=RngState)

    def number_of(self, inputs: Any) -> int | None:
        """The position of a batch in the step; None where it is left to transformers."""
        found = (number for number, batch in enumerate(self.batches) if batch is inputs)
        return next(found, None) if any(self.counts) else None


def _device_of(args: transformers.TrainingArguments) -> Device:
    """The device of this process; several of them only train as transformers does."""
    name = str(args.device)
    alone = args.world_size == 1 and args.n_gpu <= 1 and args.device.type in KINDS
    return find_device(name) if alone else Device(name, name, bf16=True, fp16=True)


def _overrides(trainer: transformers.Trainer, name: str) -> bool:
    """Whether a subclass of the user, or of another library, has its own method."""
    ours = {getattr(cls, name) for cls in (MemoryBudgetMixin, transformers.Trainer)}
    return getattr(type(trainer), name) not in ours


def _make_optimizer(
    kind: type[torch.optim.Optimizer], settings: dict[str, Any], groups: list[dict[str, Any]], learning_rate: float
) -> torch.optim.Optimizer:
    return kind(groups, **settings)


def _why_not(kind: type[Strategy]) -> Message | None:
    """Why a strategy cannot be used with a model and data that exist already."""
    if kind.result is not Result.DIFFERENT:
        return None
    return msg(
        "'{name}' changes what is trained, and model and data are yours here: use tightfit.freeze(model), "
        "peft.get_peft_model or the tokenizer's max_length before you make the trainer.",
        name=kind.name,
    )


def _measure_backward(trainer: MemoryBudgetMixin) -> None:
    """The backward pass is a phase of its own inside the step that transformers takes."""
    accelerator = trainer.accelerator
    if "backward" in vars(accelerator):
        return
    backward = accelerator.backward

    def measured(loss: torch.Tensor, **kwargs: Any) -> None:
        with trainer.meter.phase("backward"):
            backward(loss, **kwargs)

    accelerator.backward = measured
