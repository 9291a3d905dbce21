"""Packing: the rows of a batch as one row without padding, with the attention of each kept to itself.

transformers hides the tokens of other rows where positions start again from 0 and there is no mask of padding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tightfit.compat import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from tightfit.data.micro_batches import IGNORED
from tightfit.ops.fake import context, is_fake

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_TRIAL = ((5, 6, 7, 8), (9, 10, 0, 0))  # two rows of tokens, the second one padded
_SAME = 1e-3


def pack_rows(model: nn.Module) -> None:
    """Make the model pack the rows that it learns from; rows without labels, or to evaluate on, stay as they are."""
    model.register_forward_pre_hook(_pack, with_kwargs=True)


def keeps_rows_apart(model: PreTrainedModel) -> bool:
    """Whether a causal model gives the tokens of packed rows the logits that they have alone; assumed of fake ones."""
    weight = next(model.parameters())
    if type(model).__name__ not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values() or model.config.is_encoder_decoder:
        return False
    return is_fake(weight) or _has_same_logits(model, torch.tensor(_TRIAL, device=weight.device))


def _has_same_logits(model: PreTrainedModel, ids: torch.Tensor) -> bool:
    training = model.training
    batch = {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": ids}
    joined = packed(batch)
    joined.pop("labels")
    model.eval()
    with torch.no_grad():
        alone = model(input_ids=ids, attention_mask=batch["attention_mask"]).logits.flatten(0, 1)[:6]
        together = model(**joined).logits[0]
    model.train(training)
    return bool((together - alone).abs().max() <= _SAME * alone.abs().max())


def _pack(model: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
    if not model.training or kwargs.get("labels") is None or kwargs.get("attention_mask") is None:
        return None
    return args, packed(kwargs)


def packed(batch: dict[str, Any]) -> dict[str, Any]:
    """One row of all tokens that are not padding. No row is asked to predict the first token of the next."""
    mask = batch["attention_mask"]
    positions = mask.cumsum(1) - 1
    labels = batch["labels"].masked_fill(positions == 0, IGNORED)
    places = _used_places(mask)
    rows = {"input_ids": batch["input_ids"], "position_ids": positions, "labels": labels}
    others = {name: value for name, value in batch.items() if name not in (*rows, "attention_mask")}
    return {**others, **{name: value.flatten()[places].unsqueeze(0) for name, value in rows.items()}}


def _used_places(mask: torch.Tensor) -> torch.Tensor:
    """The places of the tokens that are not padding; fake tensors have the lengths of the rows, where known."""
    if not is_fake(mask):
        return mask.flatten().nonzero().squeeze(1)
    lengths = context().row_lengths or [mask.shape[1]] * mask.shape[0]
    return torch.arange(sum(lengths), device=mask.device)
