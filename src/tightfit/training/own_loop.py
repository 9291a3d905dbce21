"""Functions for a training loop of one's own in PyTorch: each works alone, with accelerate or without.

step = tightfit.recovering(step, model)          # repeats a batch that runs out of memory in smaller parts
for weight, part in tightfit.micro_batches(batch, tokens=2048): ...
tightfit.optimizer_in_backward(model, optimizer)
tightfit.chunked_layers(model, rows=8)
tightfit.chunked_loss(model)
meter = tightfit.meter()
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from tightfit.data.batching import Batching
from tightfit.data.micro_batches import RowLimits, shape_of
from tightfit.device import Device, find_device
from tightfit.display import show
from tightfit.engine.meter import Meter, meter_for
from tightfit.engine.micro_batch_loss import weighted_micro_batches
from tightfit.errors import BadInput
from tightfit.messages import msg
from tightfit.optimizers import in_backward
from tightfit.strategies.adamw import AdamW
from tightfit.strategies.chunked_layers import ChunkedLayers
from tightfit.strategies.chunked_loss import ChunkedLoss
from tightfit.strategies.parts import Parts
from tightfit.training.recovery import Recovery

if TYPE_CHECKING:
    from tightfit.data.batches import Batch

    Step = Callable[[float, Batch], torch.Tensor]

_UNBOUNDED = 1 << 30
"""Rows and tokens where nothing is limited."""


def micro_batches(
    batch: Batch, *, size: int | None = None, tokens: int | None = None, model: torch.nn.Module | None = None
) -> Iterable[tuple[float, Batch]]:
    """Cut a batch into micro-batches of `size` rows or of `tokens` tokens, padding included; each with its weight.

    The losses, times their weights, add up to the loss of the whole batch, and so do their gradients: a weight is the
    micro-batch's share of the labels. Rows are sorted by length and padding is trimmed. A language model, whose labels
    are shifted, has to be given as `model`.
    """
    if size is None and tokens is None:
        raise BadInput(msg("micro_batches needs size=ROWS or tokens=TOKENS."))
    limits = RowLimits(size or _UNBOUNDED, tokens)
    return weighted_micro_batches(model or torch.nn.Module(), dict(batch), limits)


def recovering(step: Step, model: torch.nn.Module) -> Callable[[Batch], torch.Tensor]:
    """A function that trains on a batch, and repeats it with half the rows at a time whenever memory runs out.

    `step(weight, part)` does the forward and backward pass of a part of the batch and returns its loss times the
    weight. What it adds to the gradients is dropped if memory runs out, so call the optimizer after it.
    """
    device = _device_of(model)
    recovery = Recovery(_parts_of(model, device), show)
    calls = -1

    def train(batch: Batch) -> torch.Tensor:
        nonlocal calls
        calls += 1
        rows, _ = shape_of(batch)
        recovery.parts = replace(recovery.parts, batching=Batching(rows, _UNBOUNDED))

        def attempt() -> torch.Tensor:
            weighted = _as_it_is_if_it_fits(model, batch, recovery.micro_batch_limits)
            return torch.stack([step(*each).detach() for each in recovery.tracking(weighted)]).sum()

        nothing: Any = None  # the optimizer steps afterwards
        return recovery.train(attempt, nothing, calls)

    return train


def _as_it_is_if_it_fits(model: torch.nn.Module, batch: Batch, limits: RowLimits) -> Iterable[tuple[float, Batch]]:
    rows, tokens = shape_of(batch)
    return [(1.0, batch)] if rows <= limits.rows_for(tokens) else weighted_micro_batches(model, dict(batch), limits)


def optimizer_in_backward(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, max_grad_norm: float = 0.0
) -> torch.optim.Optimizer:
    """Update each parameter inside the backward pass and free its gradient; call neither step nor zero_grad any more.

    A step then has one backward pass. Gradients are clipped by a running norm, if `max_grad_norm` is given.
    """
    owned = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    trained = [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in owned]
    if trained:
        raise BadInput(
            msg(
                "The optimizer does not have the parameter '{name}' of the model, which trains: its gradient would "
                "stay in memory. Give it all, or freeze that.",
                name=trained[0],
            )
        )
    in_backward.optimizer_in_backward(optimizer, max_grad_norm)
    return optimizer


def chunked_layers(model: torch.nn.Module, rows: int, *, layers: int = 1) -> torch.nn.Module:
    """Run every layer on a few rows at a time, with recomputation in the backward pass; changes the model in place."""
    ChunkedLayers(size=rows, layers=layers).apply(_parts_of(model, _device_of(model)))
    return model


def chunked_loss(model: torch.nn.Module, *, tokens: int = 256) -> torch.nn.Module:
    """Compute a language model's loss a few tokens at a time; changes the model in place."""
    ChunkedLoss(tokens=tokens).apply(_parts_of(model, _device_of(model)))
    return model


def meter(device: str | None = None) -> Meter:
    """Measures peak memory from now on: `with meter.phase("forward"): ...`, then `meter.measured` and `meter.peak`."""
    return meter_for(find_device(device))


def _device_of(model: torch.nn.Module) -> Device:
    kind = next(model.parameters()).device
    return Device(str(kind), str(kind), bf16=True, fp16=kind.type != "cpu")


def _parts_of(model: Any, device: Device) -> Parts:
    return Parts(
        model=model,
        device=device,
        optimizer=AdamW().build,
        batching=Batching(_UNBOUNDED, _UNBOUNDED),
        learning_rate=0.0,
        weight_decay=0.0,
        max_grad_norm=0.0,
    )
