"""The steps of a training run, taken by training and by its simulation: train, update, evaluate, save, restore.

A head's loss is the mean over the labels it saw, whatever the head. The means of the micro-batches, weighted by their
share of the batch's labels, add up to the mean of the whole batch, also when rows have different numbers of labels and
when the last batch of an epoch is smaller. Nothing depends on how a head treats `num_items_in_batch`, which makes
gradient accumulation in transformers wrong for some heads.

Every step runs in a phase: training measures the memory of each phase, the simulation attributes its trace to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TypeVar

from tightfit.data.batches import IGNORED, micro_batches

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from transformers import PreTrainedModel

    from tightfit.data.batches import Batch, RowLimits
    from tightfit.strategies.parts import Parts

    PhaseContext = Callable[[str], AbstractContextManager[None]]
    LossFn = Callable[[torch.nn.Module, Batch], torch.Tensor]
    Weights = Mapping[str, torch.Tensor]

T = TypeVar("T")


def weighted_micro_batches(
    model: PreTrainedModel, batch: Batch, rows: int | RowLimits, *, sort: bool = False
) -> Iterable[tuple[float, Batch]]:
    """The micro-batches, each with its share of the batch's labels; those without labels are skipped."""
    counts = label_counts(model, batch["labels"])
    total = sum(counts)
    for chosen, micro_batch in micro_batches(batch, rows, encoder_decoder=model.config.is_encoder_decoder, sort=sort):
        count = sum(counts[row] for row in chosen)
        if count:
            yield count / total, micro_batch


def label_counts(model: PreTrainedModel, labels: torch.Tensor) -> list[int]:
    """The number of labels of each row that enter the loss."""
    if labels.is_floating_point():  # regression or multi-label classification
        return [labels[0].numel()] * len(labels)
    counted = labels != IGNORED
    if labels.dim() > 1 and _predicts_next_token(model):
        counted = counted[:, 1:]  # no logit predicts the first token of a row
    return [int(n) for n in counted.reshape(len(labels), -1).sum(dim=1).tolist()]


def _predicts_next_token(model: PreTrainedModel) -> bool:
    from tightfit.compat import LOSS_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, ForCausalLMLoss

    shifts = LOSS_MAPPING.get(getattr(model, "loss_type", None)) is ForCausalLMLoss
    # Some heads have no loss_type and still shift the labels (GPT2LMHeadModel).
    causal = type(model).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    return (shifts or causal) and not model.config.is_encoder_decoder


def model_loss(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """The loss that the model's head computes."""
    loss: torch.Tensor = model(**batch).loss
    return loss


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
