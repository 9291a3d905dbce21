"""Stage: plays a whole training on tensors that have shapes and no data, with the assembly of the real one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers.initialization import no_init_weights

from tightfit.assembly import assemble, build_optimizer
from tightfit.data.labels import Labels
from tightfit.device import Device
from tightfit.job import Job
from tightfit.meter import BETWEEN
from tightfit.recipe import Recipe
from tightfit.rehearsal.choices import kernels_of_a_cpu
from tightfit.rehearsal.lengths import Lengths, Shapes
from tightfit.rehearsal.tape import Tape
from tightfit.rehearsal.tracer import Tracer
from tightfit.step import run_slices
from tightfit.strategy import Kind, Parts, Precision

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from tightfit.data.slices import Batch

_DTYPES = {Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}


@dataclass(frozen=True)
class Performance:
    """What a rehearsal leaves behind: the tape, the parts as shapes, and the shapes of the data played."""

    tape: Tape
    parts: Parts
    shapes: Shapes


def play(
    job: Job,
    recipe: Recipe,
    device: Device,
    labels: Labels,
    tokenizer: PreTrainedTokenizerBase,
    lengths: Lengths,
    *,
    shapes_only: bool = True,
) -> Performance:
    """Build the training and go through its moments. Without `shapes_only` it is played on real tensors, for tests."""
    tape = Tape()
    tracer = Tracer(tape)
    without_weights = job.model_copy(update={"random_weights": True})
    with _shapes_without_data() if shapes_only else contextlib.nullcontext(), tracer:
        tape.begin("load")
        parts = assemble(without_weights, recipe, device, labels, tokenizer)
        tracer.mark([*parts.model.parameters(), *parts.model.buffers()], Kind.WEIGHTS)
        shapes = lengths.worst(parts)
        optimizer = build_optimizer(parts)
        _train(parts, optimizer, shapes, tracer)
        _evaluate(parts, shapes, tracer)
        _save_and_load_best(parts, tape)
    return Performance(tape, parts, shapes)


@contextlib.contextmanager
def _shapes_without_data() -> Iterator[None]:
    # Weights without data need no first values, and drawing them may look at data (ModernBERT's does).
    with FakeTensorMode(allow_non_fake_inputs=True), no_init_weights(), kernels_of_a_cpu():
        yield


def _train(parts: Parts, optimizer: torch.optim.Optimizer, shapes: Shapes, tracer: Tracer) -> None:
    """A step that fills the optimizer's memory, then a whole one beside it."""
    tracer.tape.begin("step")
    for parameter in parts.model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda p: tracer.mark([p.grad], Kind.GRADIENTS))
            parameter.grad = torch.zeros_like(parameter)
            tracer.mark([parameter.grad], Kind.GRADIENTS)
    _step(parts, optimizer, tracer)
    with _number_format(parts):
        run_slices(parts.model.train(), _slices(shapes, tracer), torch.Tensor.backward, tracer.tape.moment)
    _step(parts, optimizer, tracer)


def _step(parts: Parts, optimizer: torch.optim.Optimizer, tracer: Tracer) -> None:
    with tracer.tape.moment("step"):
        if parts.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(parts.model.parameters(), parts.max_grad_norm)
        optimizer.step()
        state = [value for values in optimizer.state.values() for value in values.values()]
        tracer.mark((value for value in state if isinstance(value, torch.Tensor)), Kind.OPTIMIZER_STATE)
    parts.model.zero_grad()


def _evaluate(parts: Parts, shapes: Shapes, tracer: Tracer) -> None:
    with tracer.tape.moment("evaluate"), torch.no_grad(), _number_format(parts):
        parts.model.eval()(**_batch(*shapes.evaluation, tracer))


def _save_and_load_best(parts: Parts, tape: Tape) -> None:
    """Saving writes from the weights themselves; loading reads one tensor at a time beside them."""
    tape.begin("save")
    with tape.moment("load-best"), torch.no_grad():
        for weight in parts.model.state_dict().values():
            weight.copy_(torch.empty_like(weight))


def _slices(shapes: Shapes, tracer: Tracer) -> Iterator[tuple[float, Batch]]:
    tracer.tape.begin(BETWEEN)
    for rows, length in shapes.slices:
        yield 1.0 / len(shapes.slices), _batch(rows, length, tracer)


def _batch(rows: int, length: int, tracer: Tracer) -> Batch:
    ids = torch.ones((rows, length), dtype=torch.long)
    mask = torch.ones_like(ids)
    mask[-1, -1] = 0  # with nothing to mask transformers would drop the mask, which is less than the worst
    batch = {"input_ids": ids, "attention_mask": mask, "labels": torch.ones(rows, dtype=torch.long)}
    tracer.mark(batch.values(), Kind.INPUTS)
    return batch


@contextlib.contextmanager
def _number_format(parts: Parts) -> Iterator[None]:
    """Autocast as accelerate switches it on around the model."""
    dtype = _DTYPES.get(parts.precision)
    with torch.autocast(parts.device.kind, dtype) if dtype else contextlib.nullcontext():
        yield
