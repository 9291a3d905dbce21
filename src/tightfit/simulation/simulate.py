"""Simulation of one training run: its phases run on fake tensors, built by the same code as real training."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch

from tightfit.compat import (
    FAKE_TENSOR_LOGGER,
    GRAPH_CAPTURE_CHECK,
    FakeTensorMode,
    disable_fake_cache,
    dtype_of_move,
)
from tightfit.data.batch_spec import BatchSpec
from tightfit.data.batching import BatchShape
from tightfit.device import Device
from tightfit.engine.assembly import build_optimizer
from tightfit.engine.meter import OTHER
from tightfit.engine.micro_batch_loss import model_loss
from tightfit.engine.step import (
    clip_gradients,
    drop_state,
    encode_batch,
    evaluate_batch,
    finish_model,
    optimizer_step,
    restore,
    save,
    train_batch,
)
from tightfit.messages import Message
from tightfit.models import quiet_transformers
from tightfit.ops.buffer_pool import release_active
from tightfit.ops.fake import new_context, on_host, row_lengths
from tightfit.simulation.kernels import kernels_of, scratch_on, workspace_on
from tightfit.simulation.known_values import Unknowns
from tightfit.simulation.op_counts import OpCounts
from tightfit.simulation.patches import replaced, uninitialized_weights
from tightfit.simulation.timeline import PASS_END, PASS_START, STATE_ALLOCATED, STATE_DROPPED, STEPS_END
from tightfit.simulation.trace import Trace
from tightfit.simulation.tracer import Tracer
from tightfit.strategies.base import MemoryKind
from tightfit.strategies.parts import Parts, Precision
from tightfit.system.processes import process_lock

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from tightfit.data.batches import Batch
    from tightfit.engine.micro_batch_loss import LossFn


with contextlib.suppress(ImportError), quiet_transformers():  # the command line may block peft, see optional_imports.py
    # transformers imports peft when it builds a model, and peft imports bitsandbytes where installed, which allocates
    # tensors that are never freed: they would be part of the first trace.
    import peft  # noqa: F401

_DTYPES = {Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}


@dataclass(frozen=True)
class BatchShapes:
    """Rows and tokens of the micro-batches and evaluation batches to trace."""

    micro_batches: Sequence[BatchShape]
    evaluation: Sequence[BatchShape]
    lengths: Sequence[int] | None = None
    """Tokens of each row of the micro-batch, for recipes that cut layers by length."""
    encoder: Sequence[BatchShape] = ()
    """The batches that run through a frozen encoder whose outputs are cached."""


@dataclass(frozen=True)
class TracedTraining:
    """A traced training run: its allocation trace, op counts and parts (with fake tensors)."""

    trace: Trace
    parts: Parts
    shapes: BatchShapes
    parameters: int
    trainable_parameters: int
    op_counts: tuple[tuple[int, OpCounts], ...]
    """The op counts with their multiplicity; several where the depth was extrapolated."""
    optimizer_op_counts: tuple[tuple[int, OpCounts], ...]
    """The op counts that contain the optimizer's ops, with their multiplicity."""
    notes: tuple[Message, ...] = ()
    """What had to be assumed."""


def trace_training(
    assemble: Callable[[], Parts],
    device: Device,
    spec: BatchSpec,
    choose_shapes: Callable[[Parts], BatchShapes],
    loss: LossFn = model_loss,
    *,
    fake: bool = True,
    unknowns: Unknowns | None = None,
) -> TracedTraining:
    """Build the training run and trace all its phases, on fake tensors or, with `fake=False`, on real ones."""
    trace = Trace()
    tracer = Tracer(trace, scratch_on(device), unknowns, workspace_on(device))
    mode = fake_tensors(device) if fake else torch.random.fork_rng([])
    with mode, tracer, tracer.owners.tracking():
        trace.start_phase("load")
        # The model is built in host memory and moved to the GPU as a whole.
        with on_host() if device.kind == "cuda" else contextlib.nullcontext():
            parts = assemble()
        tracer.owners.register(parts.model)
        for weight in (*parts.model.parameters(), *parts.model.buffers()):
            tracer.mark_as_of(weight, [weight], MemoryKind.WEIGHTS)
        shapes = choose_shapes(parts)
        _enable_autocast(parts)
        trace.start_phase(OTHER)
        batches = _FakeBatches(parts, spec, tracer)
        _cache_features(batches, shapes, tracer)
        tag_gradients(parts.model.parameters(), tracer)  # before the recipe's hooks, which may free the gradients
        optimizer = build_optimizer(parts)
        optimizer.step = tracer.optimizing()(optimizer.step)
        _train(batches, optimizer, shapes, tracer, loss)
        _evaluate(batches, shapes, tracer)
        sizes = parts.parameters, parts.trainable_parameters
        _save_and_restore(parts, optimizer, trace)
    op_counts = ((1, tracer.op_counts),)
    return TracedTraining(trace, parts, shapes, *sizes, op_counts, op_counts)


@cache
def _fake_mode() -> FakeTensorMode:
    """One mode for all traces, so that the results of ops are computed and cached once."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    disable_fake_cache(mode)  # our cache (fake_op_cache.py) is looked up first, and two caches are slower than one
    with mode:  # trigger its lazy imports now: during the first trace they would keep frames that hold tensors
        torch.ones(1, 1)[0, 0] = 0
    return mode


@contextlib.contextmanager
def fake_tensors(device: Device) -> Iterator[None]:
    """Tensors made inside take no memory, and torch's functions allocate as on the device; in this thread only."""
    with (
        process_lock.held(),
        new_context(device.kind),
        _fake_mode(),
        uninitialized_weights(),
        kernels_of(device),
        replaced(torch.nn.Module, "to", _to_unless_noop),
        replaced(torch.optim.Optimizer, GRAPH_CAPTURE_CHECK, _do_nothing),  # it would initialize CUDA
        replaced(FAKE_TENSOR_LOGGER, "exception", _do_nothing),  # the error is raised too, and becomes one sentence
    ):
        try:
            yield
        finally:
            release_active()  # a backward pass that failed has not released its buffer pool


def _do_nothing(*args: Any) -> None:
    pass


def _to_unless_noop(module: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
    """New parameters of another number format; torch would swap fake tensors, which fails once they are in use."""
    dtype = dtype_of_move(*args, **kwargs)
    changed = [p for p in module.parameters() if p.is_floating_point() and dtype not in (None, p.dtype)]
    converted = {p: torch.nn.Parameter(p.detach().to(dtype), p.requires_grad) for p in changed}
    for part in module.modules():
        part._parameters.update({name: converted[p] for name, p in part._parameters.items() if p in converted})
    return module


def _cache_features(batches: _FakeBatches, shapes: BatchShapes, tracer: Tracer) -> None:
    """Run the frozen encoder; its cached outputs are written to a file, so none of them stay in memory."""
    for rows, length in shapes.encoder:
        with tracer.trace.section("features", rows, length):
            encode_batch(batches.parts, batches.tokens(rows, length), tracer.trace.phase, check=False)


def _train(
    batches: _FakeBatches, optimizer: torch.optim.Optimizer, shapes: BatchShapes, tracer: Tracer, loss: LossFn
) -> None:
    """One pass over the micro-batches and two optimizer steps: the first allocates the state, the second reuses it."""
    parts, trace = batches.parts, tracer.trace
    trace.mark(PASS_START)
    micro_batches = _fake_micro_batches(batches, shapes, tracer)
    train_batch(parts.model, micro_batches, loss, torch.Tensor.backward, trace.phase)
    trace.mark(PASS_END)
    if parts.max_grad_norm:  # keeps no memory, so once is enough
        clip_gradients(parts.model, parts.max_grad_norm, trace.phase)
    optimizer_step(partial(_step, optimizer, tracer), trace.phase)
    trace.mark(STATE_ALLOCATED)
    optimizer_step(partial(_step, optimizer, tracer), trace.phase)
    trace.mark(STEPS_END)
    parts.model.zero_grad()


def tag_gradients(parameters: Iterable[torch.nn.Parameter], tracer: Tracer) -> None:
    """Mark every gradient as such as soon as it exists."""
    for parameter in parameters:
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(
                lambda p: tracer.mark_as_of(p, [p.grad], MemoryKind.GRADIENTS) if p.grad is not None else None
            )


def _step(optimizer: torch.optim.Optimizer, tracer: Tracer) -> None:
    optimizer.step()
    tag_state(optimizer, tracer)


def tag_state(optimizer: torch.optim.Optimizer, tracer: Tracer) -> None:
    """Mark every tensor of the optimizer's state with its parameter; tensors in its groups belong to no parameter."""
    for parameter, values in optimizer.state.items():
        tensors = [value for value in values.values() if isinstance(value, torch.Tensor)]
        tracer.mark_as_of(parameter, tensors, MemoryKind.OPTIMIZER_STATE)
    for group in optimizer.param_groups:
        tracer.mark((value for value in group.values() if isinstance(value, torch.Tensor)), MemoryKind.OPTIMIZER_STATE)


def _evaluate(batches: _FakeBatches, shapes: BatchShapes, tracer: Tracer) -> None:
    for rows, length in shapes.evaluation:
        with tracer.trace.section("evaluation", rows, length):
            evaluate_batch(batches.parts.model, batches.step(rows, length), tracer.trace.phase, _forward)


def _forward(model: torch.nn.Module, batch: Batch) -> Any:
    return model(**batch)


def _save_and_restore(parts: Parts, optimizer: torch.optim.Optimizer, trace: Trace) -> None:
    """Saving writes directly from the weights; loading reads one tensor at a time into host memory.

    Every training run loads weights, since the pre-flight restores them.
    """
    save(parts, lambda weights: None, trace.phase)
    trace.mark(STATE_DROPPED)
    drop_state(parts.model, optimizer)
    if parts.device.kind != "cuda":
        weights = parts.checkpoint_weights
        restore(weights, lambda name: torch.empty_like(weights[name]), trace.phase)
    finish_model(parts, None, trace.phase)


@dataclass(frozen=True)
class _FakeBatches:
    """Makes the batches of a simulated training run."""

    parts: Parts
    spec: BatchSpec
    tracer: Tracer

    def step(self, rows: int, length: int) -> Batch:
        """A batch of a training step: tokens, or cached features."""
        return self._marked(self.parts.source.fake_batch(partial(self._make, rows, length)))

    def tokens(self, rows: int, length: int) -> Batch:
        """A batch of tokens."""
        return self._marked(self._make(rows, length))

    def _make(self, rows: int, length: int, *names: str) -> Batch:
        end, token = _tokens_of(getattr(self.parts.model, "config", None))
        return self.spec.make(rows, length, *names, token=token, end_token=end)

    def _marked(self, batch: Batch) -> Batch:
        self.tracer.mark(batch.values(), MemoryKind.INPUTS)
        return batch


def _tokens_of(config: PretrainedConfig | None) -> tuple[int, int]:
    """The token that ends a row, and one without a meaning to the model."""
    if config is None:  # a model that is not from transformers
        return 1, 0
    text = config.get_text_config()
    special = {value for name, value in vars(text).items() if name.endswith("_token_id") and isinstance(value, int)}
    end = getattr(text, "eos_token_id", None)  # some configs have none, others a list
    end = end if isinstance(end, int) else 1
    return end, next(token for token in itertools.count() if token not in special | {end})


def _fake_micro_batches(batches: _FakeBatches, shapes: BatchShapes, tracer: Tracer) -> Iterator[tuple[float, Batch]]:
    for rows, length in shapes.micro_batches:
        with tracer.trace.section("micro-batch", rows, length):
            tracer.trace.start_phase(OTHER)
            batch = batches.step(rows, length)
            with row_lengths(shapes.lengths):
                yield 1.0 / len(shapes.micro_batches), batch
            tracer.trace.start_phase(OTHER)


def _enable_autocast(parts: Parts) -> None:
    """Wrap the model's forward in autocast, as accelerate does; fake tensors report the CPU as their device."""
    dtype = _DTYPES.get(parts.precision)
    if dtype is not None:
        parts.model.forward = torch.autocast("cpu", dtype)(parts.model.forward)
