"""Process: what this process holds without any tensor, with everything loaded that a training loads."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from functools import cache

from tightfit.device import Device
from tightfit.optional_imports import is_slim
from tightfit.strategies.adamw import AdamW
from tightfit.strategies.parts import Parts
from tightfit.strategies.recipe import Recipe
from tightfit.units import format_bytes


def process_bytes(device: Device, *, loads_weights: bool = False) -> int:
    """On a CPU the process itself, measured; on a card the driver's context."""
    if device.kind != "cpu":
        return device.context
    from tightfit.engine.meter import resident_bytes
    from tightfit.system import tune_malloc

    warm_up(loads_weights)
    tune_malloc()
    return resident_bytes()  # no meter: this may be inside a training, which has one running


def process_size_note(device: Device, overhead: int) -> tuple[str, ...]:
    """Where the same training takes less memory on the command line: that it does, and why."""
    if device.kind != "cpu" or is_slim():
        return ()
    return (
        f"The process itself takes {format_bytes(overhead)} here; `tightfit train` on the command line needs less, "
        "since it does not import libraries that training does not use.",
    )


@cache
def warm_up(loads_weights: bool) -> None:
    """Libraries, and by small real steps also threads, buffers and the kernels' own code: some 40 MB that stay.

    The second recipe meets what the first does not; a training that needs only one takes 8 MB less than is said.
    """
    import torch
    import transformers.trainer  # noqa: F401

    from tightfit.system import tune_malloc

    if loads_weights:  # into a model of shapes, which brings along all that torch knows of them: 34 MB
        import torch.fx.experimental.symbolic_shapes

    tune_malloc()
    with torch.random.fork_rng([]), _cleared_up():
        for specs in ([], ["tiled-attention", "chunked-layers:size=2", "adafactor"]):
            _take_small_step(specs)


@contextlib.contextmanager
def _cleared_up() -> Iterator[None]:
    """What is garbage afterwards is collected. Who answers in a hurry (cli.py) has left none before: none is sought."""
    hurried = not gc.isenabled() and not gc.get_freeze_count()  # what the caller has frozen stays so
    if hurried:
        gc.freeze()
    try:
        yield
        gc.collect()
    finally:
        if hurried:
            gc.unfreeze()


def _take_small_step(specs: list[str]) -> None:
    import torch

    from tightfit.engine.assembly import build_optimizer

    parts = _small_parts(specs)
    optimizer = build_optimizer(parts)
    tokens = torch.ones(parts.batch_size, parts.max_length, dtype=torch.long)
    mask = tokens.triu()  # texts of different lengths
    parts.model(input_ids=tokens, attention_mask=mask, labels=tokens[:, 0]).loss.backward()
    torch.nn.utils.clip_grad_norm_(parts.model.parameters(), parts.max_grad_norm)
    optimizer.step()
    with torch.no_grad():
        parts.model.eval()(input_ids=tokens, attention_mask=mask)


def _small_parts(specs: list[str]) -> Parts:
    """One layer, wide enough for the buffers that products keep: with a narrow one they would grow later."""
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "num_hidden_layers": 1}
    parts = Parts(
        model=BertForSequenceClassification(BertConfig(vocab_size=64, **sizes)).train(),
        device=Device("cpu", "this machine's CPU", bf16=True, fp16=False),
        optimizer=AdamW().build,
        batch_size=4,
        max_length=64,
        learning_rate=0.0,
        weight_decay=0.0,
        max_grad_norm=1.0,
        micro_batch_size=4,
    )
    for strategy in Recipe.parse(specs).strategies:
        parts = strategy.apply(parts)
    return parts
