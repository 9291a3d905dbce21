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
from tightfit.engine.meter import BETWEEN
from tightfit.engine.step import run_slices
from tightfit.job import Job
from tightfit.ops.fake import on_host
from tightfit.simulation.kernels import kernels_of, scratch_on, workspaces_on
from tightfit.simulation.op_counts import Work
from tightfit.simulation.scaling import Extent
from tightfit.simulation.timeline import PASS_BEGINS, PASS_ENDS, STATE_IS_THERE, STEPS_END
from tightfit.simulation.trace import Tape
from tightfit.simulation.tracer import Tracer
from tightfit.strategies.base import Kind
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
class Extents:
    """Rows and tokens of the slices and of the evaluation batches that are played."""

    slices: Sequence[Extent]
    evaluation: Sequence[Extent]
    padded: bool = True
    """Whether there is something to mask; transformers drops a mask of ones, which takes less memory."""
    texts: Sequence[int] | None = None
    """How long each text of the slices is, for recipes that look."""
    trunk: Sequence[Extent] = ()
    """Of the batches that run through a trunk whose outputs are kept."""


@dataclass(frozen=True)
class Performance:
    """What a play leaves behind: the tape, and the parts as shapes."""

    tape: Tape
    parts: Parts
    extents: Extents
    parameters: int
    trainable_parameters: int
    work: tuple[tuple[int, Work], ...]
    """What was computed; where layers were left out, several such with how often each counts."""
    steps: tuple[tuple[int, Work], ...]
    """The same where the optimizer's work is to be found."""


def play(
    job: Job,
    recipe: Recipe,
    device: Device,
    labels: Labels,
    tokenizer: PreTrainedTokenizerBase,
    choose_extents: Callable[[Parts], Extents],
    *,
    layers: int | None = None,
    shapes_only: bool = True,
) -> Performance:
    """Build the training and go through its moments. Without `shapes_only` it is played on real tensors."""
    tape = Tape()
    tracer = Tracer(tape, scratch_on(device))
    shapes = shapes_without_data(device) if shapes_only else contextlib.nullcontext()
    with shapes, tracer, tracer.naming.listening():
        tape.begin("load")
        with on_host() if device.kind == "cuda" else contextlib.nullcontext():  # a card gets the model when it is whole
            parts = assemble(job, recipe, device, labels, tokenizer, layers=layers)
        tracer.naming.learn(parts.model)
        for weight in (*parts.model.parameters(), *parts.model.buffers()):
            tracer.mark_as_of(weight, [weight], Kind.WEIGHTS)
        extents = choose_extents(parts)
        _set_number_format(parts)
        take_workspaces(device, tape)
        _keep_features(parts, extents, tracer)
        follow_gradients(parts.model.parameters(), tracer)  # before a recipe's own hooks use them up
        optimizer = build_optimizer(parts)
        optimizer.step = tracer.optimizing()(optimizer.step)
        _train(parts, optimizer, extents, tracer)
        _evaluate(parts, extents, tracer)
        sizes = parts.parameters, parts.trainable_parameters
        _save_and_load_best(parts, tape)
    work = ((1, tracer.work),)
    return Performance(tape, parts, extents, *sizes, work, work)


def take_workspaces(device: Device, tape: Tape) -> None:
    """What the device's libraries keep from their first use on."""
    tape.begin(BETWEEN)
    for size in workspaces_on(device):
        tape.take(size).kind = Kind.TEMPORARY


@cache
def _shapes() -> FakeTensorMode:
    """One for all plays, so that what operations return is learnt once."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    disable_fake_cache(mode)  # ours (outcomes.py) is asked first, and two are slower than one
    with mode:  # what it imports, it imports now: in the first play frames would be kept that hold tensors
        torch.ones(1, 1)[0, 0] = 0
    return mode


@contextlib.contextmanager
def shapes_without_data(device: Device) -> Iterator[None]:
    """Tensors made inside take no memory, and torch's functions behave as on the device."""
    # Weights without data need no first values, and drawing them may look at data (ModernBERT's does).
    moving = mock.patch.object(torch.nn.Module, "to", _moved)
    with _shapes(), no_init_weights(), kernels_of(device), moving:
        yield


_move = torch.nn.Module.to


def _moved(module: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
    """A move that changes nothing is none: torch would exchange tensors without data, and cannot once they are used."""
    dtype = dtype_of_move(*args, **kwargs)
    if all(dtype in (None, p.dtype) for p in module.parameters() if p.is_floating_point()):
        return module
    return _move(module, *args, **kwargs)


def _keep_features(parts: Parts, extents: Extents, tracer: Tracer) -> None:
    """What is kept goes to a file, so nothing of it stays in memory."""
    trunk = parts.trunk
    for rows, length in extents.trunk if trunk else ():
        with tracer.tape.section("features", rows, length), tracer.tape.moment("features"):
            assert trunk is not None
            trunk.features(_texts(parts, rows, length, extents.padded, tracer))


def _train(parts: Parts, optimizer: torch.optim.Optimizer, extents: Extents, tracer: Tracer) -> None:
    """One pass over the slices and two steps: the first makes the optimizer's state, the second finds it there."""
    tracer.tape.mark(PASS_BEGINS)
    run_slices(parts.model.train(), _slices(parts, extents, tracer), torch.Tensor.backward, tracer.tape.moment)
    tracer.tape.mark(PASS_ENDS)
    _step(parts, optimizer, tracer, clip=parts.max_grad_norm)
    tracer.tape.mark(STATE_IS_THERE)
    _step(parts, optimizer, tracer, clip=0)
    tracer.tape.mark(STEPS_END)
    parts.model.zero_grad()


def follow_gradients(parameters: Iterable[torch.nn.Parameter], tracer: Tracer) -> None:
    """Every gradient is marked as such when it is there."""
    for parameter in parameters:
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(
                lambda p: tracer.mark_as_of(p, [p.grad], Kind.GRADIENTS) if p.grad is not None else None
            )


def _step(parts: Parts, optimizer: torch.optim.Optimizer, tracer: Tracer, *, clip: float) -> None:
    with tracer.tape.moment("step"):
        if clip:  # leaves nothing behind, so once is enough
            torch.nn.utils.clip_grad_norm_(parts.model.parameters(), clip)
        optimizer.step()
        mark_state(optimizer, tracer)


def mark_state(optimizer: torch.optim.Optimizer, tracer: Tracer) -> None:
    """Every tensor that an optimizer keeps, and for which parameter; what it keeps in its groups is for all of them."""
    for parameter, values in optimizer.state.items():
        kept = [value for value in values.values() if isinstance(value, torch.Tensor)]
        tracer.mark_as_of(parameter, kept, Kind.OPTIMIZER_STATE)
    for group in optimizer.param_groups:
        tracer.mark((value for value in group.values() if isinstance(value, torch.Tensor)), Kind.OPTIMIZER_STATE)


def _evaluate(parts: Parts, extents: Extents, tracer: Tracer) -> None:
    for rows, length in extents.evaluation:
        with (
            tracer.tape.section("evaluation", rows, length),
            tracer.tape.moment("evaluate"),
            torch.no_grad(),
        ):
            parts.model.eval()(**_batch(parts, rows, length, extents.padded, tracer))


def _save_and_load_best(parts: Parts, tape: Tape) -> None:
    """Saving writes from the weights themselves; loading reads one tensor at a time, into this machine's memory.

    Every training loads: a pre-flight takes its weights back. It has no optimizer state then, so this is the most.
    """
    tape.begin("save")
    if parts.device.kind != "cuda":
        with tape.moment("load-best"), torch.no_grad():
            for weight in parts.checkpoint_weights.values():
                weight.copy_(torch.empty_like(weight))
    if parts.adapter:
        with tape.moment("save"):
            parts.adapter.take_out()


def _slices(parts: Parts, extents: Extents, tracer: Tracer) -> Iterator[tuple[float, Batch]]:
    for rows, length in extents.slices:
        with tracer.tape.section("slice", rows, length):
            tracer.tape.begin(BETWEEN)
            batch = _batch(parts, rows, length, extents.padded, tracer)
            if extents.texts is not None and extents.padded:
                batch["attention_mask"].texts = list(extents.texts)
            yield 1.0 / len(extents.slices), batch
            tracer.tape.begin(BETWEEN)


def _batch(parts: Parts, rows: int, length: int, padded: bool, tracer: Tracer) -> Batch:
    if parts.trunk is None:
        return _texts(parts, rows, length, padded, tracer)
    batch = parts.trunk.blank(rows) | {"labels": torch.ones(rows, dtype=torch.long)}
    tracer.mark(batch.values(), Kind.INPUTS)
    return batch


def _texts(parts: Parts, rows: int, length: int, padded: bool, tracer: Tracer) -> Batch:
    ids = torch.ones((rows, length), dtype=torch.long)
    end = getattr(parts.model.config, "eos_token_id", None)
    ids[:, -1] = end if isinstance(end, int) else 1  # some heads read a text at its end token
    batch = {"input_ids": ids, "labels": torch.ones(rows, dtype=torch.long)}
    if padded:
        batch["attention_mask"] = torch.ones_like(ids)
        batch["attention_mask"][-1, -1] = 0
    tracer.mark(batch.values(), Kind.INPUTS)
    return batch


def _set_number_format(parts: Parts) -> None:
    """Autocast around the model's forward, as accelerate does; rehearsed tensors say that they are on a CPU."""
    dtype = _DTYPES.get(parts.precision)
    if dtype is not None:
        parts.model.forward = torch.autocast("cpu", dtype)(parts.model.forward)
