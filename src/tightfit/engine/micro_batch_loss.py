"""The loss of a batch from those of its micro-batches: each is weighted by its share of the batch's labels.

A head's loss is the mean over the labels it saw, whatever the head. The means of the micro-batches, weighted by their
share of the batch's labels, add up to the mean of the whole batch, also when rows have different numbers of labels and
when the last batch of an epoch is smaller. Nothing depends on how a head treats `num_items_in_batch`, which makes
gradient accumulation in transformers wrong for some heads.

The heads that find answers compute a softmax over all positions, padding too. Their loss of a row depends on its
padding, so for them this holds for micro-batches with the padding of the whole batch; trimmed ones have a lower loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from tightfit.data.micro_batches import IGNORED, micro_batches, shape_of

if TYPE_CHECKING:
    import torch

    from tightfit.data.batches import Batch
    from tightfit.data.micro_batches import RowLimits

    LossFn = Callable[[torch.nn.Module, Batch], torch.Tensor]


def weighted_micro_batches(
    model: torch.nn.Module,
    batch: Batch,
    rows: int | RowLimits,
    *,
    sort: bool = False,
    class_weights: Sequence[float] | None = None,
) -> Iterable[tuple[float, Batch]]:
    """The micro-batches, each with its share of the batch's labels; those without labels are skipped."""
    counts = label_counts(model, batch, class_weights)
    total = sum(counts)
    for chosen, micro_batch in micro_batches(batch, rows, encoder_decoder=_is_encoder_decoder(model), sort=sort):
        count = sum(counts[row] for row in chosen)
        if count:
            yield count / total, micro_batch


def label_counts(model: torch.nn.Module, batch: Batch, class_weights: Sequence[float] | None = None) -> list[float]:
    """The number of labels of each row that enter the loss, or the sum of their classes' weights.

    One for rows without `labels`, such as one answer each; none where the answer is outside the row.
    """
    import torch

    if "start_positions" in batch and "input_ids" in batch:  # heads ignore positions after the last token
        inside = batch["start_positions"].cpu() < batch["input_ids"].shape[1]
        return inside.reshape(len(inside), -1).sum(dim=1).tolist()
    if "labels" not in batch:
        return [1] * shape_of(batch)[0]
    labels = batch["labels"]
    if labels.is_floating_point():  # regression or multi-label classification
        return [labels[0].numel()] * len(labels)
    labels = labels.cpu()  # counted on the host, where the result is needed
    counted = labels != IGNORED
    if class_weights is not None:
        counted = counted * counted.new_tensor(class_weights, dtype=torch.float64)[labels.clamp(min=0)]
    if labels.dim() > 1 and predicts_next_token(model):
        counted = counted[:, 1:]  # no logit predicts the first token of a row
    return counted.reshape(len(labels), -1).sum(dim=1).tolist()


def _is_encoder_decoder(model: torch.nn.Module) -> bool:
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def predicts_next_token(model: torch.nn.Module) -> bool:
    """Whether the label of a position is the token after it."""
    from tightfit.compat import LOSS_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, ForCausalLMLoss

    shifts = LOSS_MAPPING.get(getattr(model, "loss_type", None)) is ForCausalLMLoss
    # Some heads have no loss_type and still shift the labels (GPT2LMHeadModel).
    causal = type(model).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    return (shifts or causal) and not _is_encoder_decoder(model)


def model_loss(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """The loss that the model's head computes."""
    loss: torch.Tensor = model(**batch).loss
    return loss
