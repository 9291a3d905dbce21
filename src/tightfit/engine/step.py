"""The steps of a training run, taken by training and by its simulation: train, update, evaluate, save, restore.

Every step runs in a phase: training measures the memory of each phase, the simulation attributes its trace to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from tightfit.data.batches import Batch
    from tightfit.engine.micro_batch_loss import LossFn
    from tightfit.strategies.parts import Parts

    PhaseContext = Callable[[str], AbstractContextManager[None]]
    Weights = Mapping[str, torch.Tensor]

T = TypeVar("T")


def train_batch(
    model: torch.nn.Module,
    weighted: Iterable[tuple[float, Batch]],
    loss_fn: LossFn,
    backward: Callable[[torch.Tensor], None],
    phase: PhaseContext,
) -> torch.Tensor:
    """Forward and backward of every micro-batch, accumulating gradients; returns the mean loss of the batch."""
    import torch

    model.train()
    losses = []
    for weight, micro_batch in weighted:
        with phase("forward"):
            loss = loss_fn(model, micro_batch) * weight
        with phase("backward"):
            backward(loss)
        losses.append(loss.detach())
        del loss  # holds the graph of the whole micro-batch
    return torch.stack(losses).sum() if losses else torch.zeros((), device=next(model.parameters()).device)


def clip_gradients(
    model: torch.nn.Module, limit: float, phase: PhaseContext, clip: Callable[..., T] | None = None
) -> T | torch.Tensor:
    """Scale the gradients down to a norm of at most `limit`; returns their norm before."""
    import torch

    with phase("step"):
        return (clip or torch.nn.utils.clip_grad_norm_)(model.parameters(), limit)


def optimizer_step(take: Callable[[], T], phase: PhaseContext) -> T:
    """Update the weights."""
    with phase("step"):
        return take()


def evaluate_batch(
    model: torch.nn.Module, batch: Batch, phase: PhaseContext, forward: Callable[[torch.nn.Module, Batch], T]
) -> T:
    """What `forward` computes for a batch, without gradients."""
    import torch

    with phase("evaluate"), torch.no_grad():
        return forward(model.eval(), batch)


def encode_batch(parts: Parts, batch: Batch, phase: PhaseContext, *, check: bool) -> Batch:
    """The rows of a step that are computed from a batch of tokens before training."""
    with phase("features"):
        return parts.source.encode(batch, check=check)


def save(parts: Parts, write: Callable[[Weights], None], phase: PhaseContext) -> None:
    """Write the weights that a checkpoint holds; they are written from where they are, without a copy."""
    with phase("save"):
        write(parts.checkpoint_weights)


def drop_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    """Free gradients and optimizer state before weights are loaded, to which they do not belong."""
    model.zero_grad()
    if optimizer is not None:
        optimizer.state.clear()


def restore(weights: Weights, read: Callable[[str], torch.Tensor], phase: PhaseContext) -> None:
    """Read saved weights one tensor at a time, so that no second set of them is in memory."""
    import torch

    with phase("load-best"), torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(read(name))


def finish_model(parts: Parts, folder: Path | None, phase: PhaseContext) -> None:
    """Make the trained model an ordinary one, as it is saved; files of its own go to the folder, if given."""
    with phase("save"):
        parts.export.finish(folder)
