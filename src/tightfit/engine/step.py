"""The step: one effective batch through the model in slices, equal to the whole batch at once.

A head's loss is the mean over the labels it saw, whatever the head. A slice's mean, weighed by the slice's
share of the batch's labels, adds up to the mean of the whole batch, also when rows carry different numbers of
labels and when the last batch of an epoch is smaller. Nothing depends on how a head treats
`num_items_in_batch`, which is where gradient accumulation goes wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from tightfit.data.batches import IGNORED, micro_batches

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from tightfit.data.batches import Batch, RowLimits

    Moment = Callable[[str], AbstractContextManager[None]]


def weighted_micro_batches(
    model: PreTrainedModel, batch: Batch, rows: int | RowLimits, *, sort: bool = False
) -> Iterable[tuple[float, Batch]]:
    """The slices of a batch, each with its share of the batch's labels; slices without labels teach nothing."""
    counts = label_counts(model, batch["labels"])
    total = sum(counts)
    for chosen, piece in micro_batches(batch, rows, encoder_decoder=model.config.is_encoder_decoder, sort=sort):
        share = sum(counts[row] for row in chosen)
        if share:
            yield share / total, piece


def label_counts(model: PreTrainedModel, labels: torch.Tensor) -> list[int]:
    """How many labels of each row enter the loss."""
    if labels.is_floating_point():  # a regression, or a yes and no for every class
        return [labels[0].numel()] * len(labels)
    counted = labels != IGNORED
    if labels.dim() > 1 and _predicts_next_token(model):
        counted = counted[:, 1:]  # nothing predicts a text's first token
    return [int(n) for n in counted.reshape(len(labels), -1).sum(dim=1).tolist()]


def _predicts_next_token(model: PreTrainedModel) -> bool:
    from tightfit.compat import LOSS_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, ForCausalLMLoss

    shifts = LOSS_MAPPING.get(getattr(model, "loss_type", None)) is ForCausalLMLoss
    # Some heads name no loss and still shift (GPT2LMHeadModel).
    causal = type(model).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    return (shifts or causal) and not model.config.is_encoder_decoder


def run_micro_batches(
    model: torch.nn.Module,
    slices: Iterable[tuple[float, Batch]],
    backward: Callable[[torch.Tensor], None],
    phase: Moment,
) -> torch.Tensor:
    """Forward and backward of every slice; gradients add up in the parameters. Returns the batch's mean loss."""
    import torch

    losses = []
    for share, piece in slices:
        with phase("forward"):
            loss = model(**piece).loss * share
        with phase("backward"):
            backward(loss)
        losses.append(loss.detach())
        del loss  # holds the slice's whole graph
    return torch.stack(losses).sum() if losses else torch.zeros((), device=next(model.parameters()).device)
