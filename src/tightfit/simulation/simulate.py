"""Stage: plays a whole training on tensors that have shapes and no data, with the assembly of the real one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

from tightfit.compat import FakeTensorMode, disable_fake_cache, dtype_of_move, no_init_weights
from tightfit.data.rows import Labels
from tightfit.device import Device
from tightfit.engine.assembly import assemble, build_optimizer
from tightfit.engine.meter import OTHER
from tightfit.engine.step import run_micro_batches
from tightfit.job import Job
from tightfit.ops.fake import on_host
from tightfit.simulation.kernels import kernels_of, scratch_on, workspaces_on
from tightfit.simulation.op_counts import OpCounts
from tightfit.simulation.scaling import BatchShape
from tightfit.simulation.timeline import PASS_BEGINS, PASS_ENDS, STATE_IS_THERE, STEPS_END
from tightfit.simulation.trace import Trace
from tightfit.simulation.tracer import Tracer
from tightfit.strategies.base import MemoryKind
from tightfit.strategies.parts import Parts, Precision
from tightfit.strategies.recipe import Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from tightfit.data.batches import Batch


with contextlib.suppress(ImportError):  # in a process of our own nobody finds it, see lean.py
    # transformers imports peft when it builds a model, and peft imports bitsandbytes where it is installed, which makes
    # tensors for good: they would be part of the first play.
    import peft  # noqa: F401

_DTYPES = {Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}


@dataclass(frozen=True)
class BatchShapes:
    """Rows and tokens of the slices and of the evaluation batches that are played."""

    slices: Sequence[BatchShape]
    evaluation: Sequence[BatchShape]
    padded: bool = True
    """Whether there is something to mask; transformers drops a mask of ones, which takes less memory."""
    texts: Sequence[int] | None = None
    """How long each text of the slices is, for recipes that look."""
    feature_cache: Sequence[BatchShape] = ()
    """Of the batches that run through a trunk whose outputs are kept."""


@dataclass(frozen=True)
class TracedTraining:
    """What a play leaves behind: the tape, and the parts as shapes."""

    trace: Trace
    parts: Parts
    shapes: BatchShapes
    parameters: int
    trainable_parameters: int
    work: tuple[tuple[int, OpCounts], ...]
    """What was computed; where layers were left out, several such with how often each counts."""
    steps: tuple[tuple[int, OpCounts], ...]
    """The same where the optimizer's work is to be found."""


def trace_training(
    job: Job,
    recipe: Recipe,
    device: Device,
    labels: Labels,
    tokenizer: PreTrainedTokenizerBase,
    choose_shapes: Callable[[Parts], BatchShapes],
    *,
    layers: int | None = None,
    fake: bool = True,
) -> TracedTraining:
    """Build the training and go through its moments. Without `shapes_only` it is played on real tensors."""
    trace = Trace()
    tracer = Tracer(trace, scratch_on(device))
    mode = fake_tensors(device) if fake else contextlib.nullcontext()
    with mode, tracer, tracer.naming.listening():
        trace.begin("load")
        with on_host() if device.kind == "cuda" else contextlib.nullcontext():  # a card gets the model when it is whole
            parts = assemble(job, recipe, device, labels, tokenizer, layers=layers)
        tracer.naming.learn(parts.model)
        for weight in (*parts.model.parameters(), *parts.model.buffers()):
            tracer.mark_as_of(weight, [weight], MemoryKind.WEIGHTS)
        shapes = choose_shapes(parts)
        _set_number_format(parts)
        take_workspaces(device, trace)
        _keep_features(parts, shapes, tracer)
        tag_gradients(parts.model.parameters(), tracer)  # before a recipe's own hooks use them up
        optimizer = build_optimizer(parts)
        optimizer.step = tracer.optimizing()(optimizer.step)
        _train(parts, optimizer, shapes, tracer)
        _evaluate(parts, shapes, tracer)
        sizes = parts.parameters, parts.trainable_parameters
        _save_and_load_best(parts, trace)
    work = ((1, tracer.work),)
    return TracedTraining(trace, parts, shapes, *sizes, work, work)


def take_workspaces(device: Device, trace: Trace) -> None:
    """What the device's libraries keep from their first use on."""
    trace.begin(OTHER)
    for size in workspaces_on(device):
        trace.take(size).kind = MemoryKind.TEMPORARY


@cache
def _fake_mode() -> FakeTensorMode:
    """One for all plays, so that what operations return is learnt once."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    disable_fake_cache(mode)  # ours (outcomes.py) is asked first, and two are slower than one
    with mode:  # what it imports, it imports now: in the first play frames would be kept that hold tensors
        torch.ones(1, 1)[0, 0] = 0
    return mode


@contextlib.contextmanager
def fake_tensors(device: Device) -> Iterator[None]:
    """Tensors made inside take no memory, and torch's functions behave as on the device."""
    # Weights without data need no first values, and drawing them may look at data (ModernBERT's does).
    moving = mock.patch.object(torch.nn.Module, "to", _moved)
    with _fake_mode(), no_init_weights(), kernels_of(device), moving:
        yield


_move = torch.nn.Module.to


def _moved(module: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
    """A move that changes nothing is none: torch would exchange tensors without data, and cannot once they are used."""
    dtype = dtype_of_move(*args, **kwargs)
    if all(dtype in (None, p.dtype) for p in module.parameters() if p.is_floating_point()):
        return module
    return _move(module, *args, **kwargs)


def _keep_features(parts: Parts, shapes: BatchShapes, tracer: Tracer) -> None:
    """What is kept goes to a file, so nothing of it stays in memory."""
    feature_cache = parts.feature_cache
    for rows, length in shapes.feature_cache if feature_cache else ():
        with tracer.trace.section("features", rows, length), tracer.trace.phase("features"):
            assert feature_cache is not None
            feature_cache.features(_texts(parts, rows, length, shapes.padded, tracer))


def _train(parts: Parts, optimizer: torch.optim.Optimizer, shapes: BatchShapes, tracer: Tracer) -> None:
    """One pass over the slices and two steps: the first makes the optimizer's state, the second finds it there."""
    tracer.trace.mark(PASS_BEGINS)
    run_micro_batches(parts.model.train(), _slices(parts, shapes, tracer), torch.Tensor.backward, tracer.trace.phase)
    tracer.trace.mark(PASS_ENDS)
    _step(parts, optimizer, tracer, clip=parts.max_grad_norm)
    tracer.trace.mark(STATE_IS_THERE)
    _step(parts, optimizer, tracer, clip=0)
    tracer.trace.mark(STEPS_END)
    parts.model.zero_grad()


def tag_gradients(parameters: Iterable[torch.nn.Parameter], tracer: Tracer) -> None:
    """Every gradient is marked as such when it is there."""
    for parameter in parameters:
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(
                lambda p: tracer.mark_as_of(p, [p.grad], MemoryKind.GRADIENTS) if p.grad is not None else None
            )


def _step(parts: Parts, optimizer: torch.optim.Optimizer, tracer: Tracer, *, clip: float) -> None:
    with tracer.trace.phase("step"):
        if clip:  # leaves nothing behind, so once is enough
            torch.nn.utils.clip_grad_norm_(parts.model.parameters(), clip)
        optimizer.step()
        tag_state(optimizer, tracer)


def tag_state(optimizer: torch.optim.Optimizer, tracer: Tracer) -> None:
    """Every tensor that an optimizer keeps, and for which parameter; what it keeps in its groups is for all of them."""
    for parameter, values in optimizer.state.items():
        kept = [value for value in values.values() if isinstance(value, torch.Tensor)]
        tracer.mark_as_of(parameter, kept, MemoryKind.OPTIMIZER_STATE)
    for group in optimizer.param_groups:
        tracer.mark((value for value in group.values() if isinstance(value, torch.Tensor)), MemoryKind.OPTIMIZER_STATE)


def _evaluate(parts: Parts, shapes: BatchShapes, tracer: Tracer) -> None:
    for rows, length in shapes.evaluation:
        with (
            tracer.trace.section("evaluation", rows, length),
            tracer.trace.phase("evaluate"),
            torch.no_grad(),
        ):
            parts.model.eval()(**_batch(parts, rows, length, shapes.padded, tracer))


def _save_and_load_best(parts: Parts, trace: Trace) -> None:
    """Saving writes from the weights themselves; loading reads one tensor at a time, into this machine's memory.

    Every training loads: a pre-flight takes its weights back. It has no optimizer state then, so this is the most.
    """
    trace.begin("save")
    if parts.device.kind != "cuda":
        with trace.phase("load-best"), torch.no_grad():
            for weight in parts.checkpoint_weights.values():
                weight.copy_(torch.empty_like(weight))
    if parts.adapter:
        with trace.phase("save"):
            parts.adapter.merge_or_unload()


def _slices(parts: Parts, shapes: BatchShapes, tracer: Tracer) -> Iterator[tuple[float, Batch]]:
    for rows, length in shapes.slices:
        with tracer.trace.section("micro-batch", rows, length):
            tracer.trace.begin(OTHER)
            batch = _batch(parts, rows, length, shapes.padded, tracer)
            if shapes.texts is not None and shapes.padded:
                batch["attention_mask"].texts = list(shapes.texts)
            yield 1.0 / len(shapes.slices), batch
            tracer.trace.begin(OTHER)


def _batch(parts: Parts, rows: int, length: int, padded: bool, tracer: Tracer) -> Batch:
    if parts.feature_cache is None:
        return _texts(parts, rows, length, padded, tracer)
    batch = parts.feature_cache.blank(rows) | {"labels": torch.ones(rows, dtype=torch.long)}
    tracer.mark(batch.values(), MemoryKind.INPUTS)
    return batch


def _texts(parts: Parts, rows: int, length: int, padded: bool, tracer: Tracer) -> Batch:
    ids = torch.ones((rows, length), dtype=torch.long)
    end = getattr(parts.model.config, "eos_token_id", None)
    ids[:, -1] = end if isinstance(end, int) else 1  # some heads read a text at its end token
    batch = {"input_ids": ids, "labels": torch.ones(rows, dtype=torch.long)}
    if padded:
        batch["attention_mask"] = torch.ones_like(ids)
        batch["attention_mask"][-1, -1] = 0
    tracer.mark(batch.values(), MemoryKind.INPUTS)
    return batch


def _set_number_format(parts: Parts) -> None:
    """Autocast around the model's forward, as accelerate does; rehearsed tensors say that they are on a CPU."""
    dtype = _DTYPES.get(parts.precision)
    if dtype is not None:
        parts.model.forward = torch.autocast("cpu", dtype)(parts.model.forward)
