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
from tightfit.strategies.adamw import AdamW
from tightfit.strategies.parts import Parts
from tightfit.strategies.recipe import Recipe
from tightfit.system import trim_malloc, tuned_malloc
from tightfit.units import format_bytes


def process_bytes(device: Device, *, loads_weights: bool = False) -> int:
    """The measured size of the process on a CPU; the size of the CUDA context on a GPU."""
    if device.kind != "cpu":
        return device.context_bytes
    with tuned_malloc():
        warm_up(loads_weights)
        trim_malloc()
        return resident_bytes()  # not by a Meter: this may run inside a training run, which already has one


def process_size_note(device: Device, overhead: int) -> tuple[Message, ...]:
    """A note that the same training run needs less memory on the command line, where that is so."""
    if device.kind != "cpu" or is_slim():
        return ()
    note = msg(
        "The process itself takes {size} here; `tightfit train` on the command line needs less, "
        "since it does not import libraries that training does not use.",
        size=format_bytes(overhead),
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


def _run_small_step(specs: list[str]) -> None:
    import torch

    parts = _small_parts(specs)
    optimizer = build_optimizer(parts)
    tokens = torch.ones(parts.batching.batch_size, parts.batching.max_length, dtype=torch.long)
    mask = tokens.triu()  # rows of different lengths
    parts.model(input_ids=tokens, attention_mask=mask, labels=tokens[:, 0]).loss.backward()
    torch.nn.utils.clip_grad_norm_(parts.model.parameters(), parts.max_grad_norm)
    optimizer.step()
    with torch.no_grad():
        parts.model.eval()(input_ids=tokens, attention_mask=mask)


def _small_parts(specs: list[str]) -> Parts:
    """One layer, as wide as the buffers that matmul kernels keep: with a narrow one they would grow later."""
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "num_hidden_layers": 1}
    parts = Parts(
        model=BertForSequenceClassification(BertConfig(vocab_size=64, **sizes)).train(),
        device=Device("cpu", "this machine's CPU", bf16=True, fp16=False),
        optimizer=AdamW().build,
        batching=Batching(batch_size=4, max_length=64),
        learning_rate=0.0,
        weight_decay=0.0,
        max_grad_norm=1.0,
    )
    for strategy in Recipe.parse(specs).in_order_of_application:
        parts = strategy.apply(parts)
    return parts
