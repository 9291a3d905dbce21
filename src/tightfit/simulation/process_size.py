"""Process size: the memory of this process without any tensor, with all libraries loaded that training needs."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from functools import cache

from tightfit.data.batching import Batching
from tightfit.device import Device
from tightfit.engine.assembly import build_optimizer
from tightfit.engine.meter import resident_bytes
from tightfit.messages import Message, msg
from tightfit.optional_imports import is_slim
from tightfit.simulation.error_margin import PROCESS_NOISE
from tightfit.strategies.adamw import AdamW
from tightfit.strategies.parts import Parts, Precision
from tightfit.strategies.recipe import Recipe
from tightfit.system.memory import trim_malloc, tuned_malloc
from tightfit.system.processes import run_in_fork
from tightfit.units import format_bytes


def process_bytes(device: Device, *, loads_weights: bool = False) -> int:
    """The measured size of the process on a CPU; the size of the CUDA context on a GPU."""
    if device.kind != "cpu":
        return device.context_bytes
    if loads_weights in _kept_sizes:
        return _kept_sizes[loads_weights]
    _sizes.append(_measured_size(loads_weights))
    return _sizes[-1]


def keep_process_sizes() -> None:
    """Measure the sizes of this process now and keep them: for a worker, whose traces are in no training's process."""
    for loads_weights in (False, True):  # what the second one imports stays
        _kept_sizes[loads_weights] = _measured_size(loads_weights)


_kept_sizes: dict[bool, int] = {}


def _measured_size(loads_weights: bool) -> int:
    with tuned_malloc():
        warm_up(loads_weights)
        trim_malloc()
        return resident_bytes()  # not by a Meter: this may run inside a training run, which already has one


def process_size_note(device: Device, overhead: int) -> tuple[Message, ...]:
    """Notes that the process holds more than training needs: all that it has imported and what its user has made."""
    if device.kind != "cpu" or is_slim():
        return ()
    note = msg(
        "The process itself takes {size} here, with all that it holds already (libraries, data, models, results), "
        "and that counts; `tightfit train` on the command line needs less, and so does a notebook whose kernel is "
        "restarted.",
        size=format_bytes(overhead),
    )
    return (note, *_growth_note(overhead))


_sizes: list[int] = []
"""Every size that was measured in this process."""


def _growth_note(overhead: int) -> tuple[Message, ...]:
    """A note that an earlier prediction was made in a smaller process."""
    growth = overhead - min(_sizes, default=overhead)
    if growth <= PROCESS_NOISE["cpu"]:
        return ()
    note = msg(
        "It takes {growth} more than at an earlier prediction in this process: a recipe that was planned then may not "
        "fit now. Restart the kernel, or plan and train on the command line.",
        growth=format_bytes(growth),
    )
    return (note,)


@cache
def warm_up(loads_weights: bool) -> None:
    """Load libraries and, by small real steps, threads, buffers and kernel code: some 40 MB that stay allocated.

    The second recipe uses code that the first does not; a training run that needs only one of them takes 8 MB less
    than measured here.
    """
    import torch
    import transformers.trainer  # noqa: F401

    if loads_weights:  # loading into a meta-device model imports torch's symbolic shapes: 34 MB
        import torch.fx.experimental.symbolic_shapes

    with tuned_malloc(), torch.random.fork_rng([]), _collecting_garbage():
        for specs in ([], ["tiled-attention", "chunked-layers:size=2", "adafactor"]):
            _run_small_step(specs)


@cache
def bf16_code_bytes() -> int:
    """What the first products and other ops in bf16 add to this process for good: code of libraries and of oneDNN.

    Measured in a fork, so that a recipe in fp32 is not predicted to need it afterwards. A fork has its own page tables:
    the same step in fp32 makes the code resident that every training uses.
    """
    return run_in_fork(_growth_by_bf16)


_FEW = 2, 16  # rows and tokens: products in bf16 are slow where the processor has no instructions for them
_LENGTHS = range(17, 21)  # with products of so many shapes the caches of generated code are full


def _growth_by_bf16() -> int:
    with tuned_malloc():
        _run_small_step([], *_FEW)
        before = _trimmed_size()
        for specs in (["mixed-precision"], ["bf16-weights"]):
            _run_small_step(specs, *_FEW)
        for length in _LENGTHS:
            _run_small_step(["mixed-precision"], _FEW[0], length)
        return max(0, _trimmed_size() - before)


def _trimmed_size() -> int:
    gc.collect()
    trim_malloc()
    return resident_bytes()


@contextlib.contextmanager
def _collecting_garbage() -> Iterator[None]:
    """Collect the garbage made inside. Where the caller has disabled the collector, older objects are not searched."""
    freeze = not gc.isenabled() and not gc.get_freeze_count()  # do not unfreeze what the caller has frozen
    if freeze:
        gc.freeze()
    try:
        yield
        gc.collect()
    finally:
        if freeze:
            gc.unfreeze()


def _run_small_step(specs: list[str], rows: int = 4, length: int = 64) -> None:
    import torch

    parts = _small_parts(specs, rows, length)
    optimizer = build_optimizer(parts)
    tokens = torch.ones(parts.batching.batch_size, parts.batching.max_length, dtype=torch.long)
    mask = tokens.triu()  # rows of different lengths
    with torch.autocast("cpu", torch.bfloat16, enabled=parts.precision is Precision.BF16):
        loss = parts.model(input_ids=tokens, attention_mask=mask, labels=tokens[:, 0]).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(parts.model.parameters(), parts.max_grad_norm)
    optimizer.step()
    with torch.no_grad():
        parts.model.eval()(input_ids=tokens, attention_mask=mask)


def _small_parts(specs: list[str], rows: int, length: int) -> Parts:
    """One layer, as wide as the buffers that matmul kernels keep: with a narrow one they would grow later."""
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "num_hidden_layers": 1}
    parts = Parts(
        model=BertForSequenceClassification(BertConfig(vocab_size=64, **sizes)).train(),
        device=Device("cpu", "this machine's CPU", bf16=True, fp16=False),
        optimizer=AdamW().build,
        batching=Batching(batch_size=rows, max_length=length),
        learning_rate=0.0,
        weight_decay=0.0,
        max_grad_norm=1.0,
    )
    for strategy in Recipe.parse(specs).in_order_of_application:
        parts = strategy.apply(parts)
    return parts
