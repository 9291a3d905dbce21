"""Slices: a batch sorted by length, cut into pieces, each without the padding it does not need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tightfit.data.limits import RowLimits

if TYPE_CHECKING:
    import torch

    Batch = dict[str, torch.Tensor]
    Spans = list[tuple[int, int]]

IGNORED = -100  # the label that losses pass over


def cut_slices(
    batch: Batch, rows: int | RowLimits, *, encoder_decoder: bool = False, sort: bool = False
) -> Iterator[tuple[list[int], Batch]]:
    """Cut a batch into slices of at most `rows` rows, longest first; with each, the rows of the batch it holds."""
    limits = RowLimits(rows) if isinstance(rows, int) else rows
    inputs = row_spans(_used_inputs(batch, encoder_decoder))
    targets = row_spans(batch["labels"] != IGNORED) if encoder_decoder and _are_tokens(batch) else None
    order = list(range(len(inputs)))
    if sort or len(order) > limits.at(max(end - first for first, end in inputs)):
        order.sort(key=lambda row: inputs[row][0] - inputs[row][1])
    while order:
        first, end = inputs[order[0]]
        chosen = order[: limits.at(end - first)]
        order = order[len(chosen) :]
        whole = chosen == list(range(len(inputs)))
        piece = batch if whole else {key: value[chosen] for key, value in batch.items()}
        yield chosen, _trim(piece, _hull(inputs, chosen), _hull(targets, chosen) if targets else None)


def row_spans(used: torch.Tensor) -> Spans:
    """For each row the first used column and the one behind the last. One look at the device for the whole batch."""
    import torch

    width = used.shape[1]
    first = used.int().argmax(dim=1)
    end = width - used.flip(1).int().argmax(dim=1)
    end = torch.where(used.any(dim=1), end, first)
    return [(int(a), int(b)) for a, b in torch.stack([first, end], dim=1).tolist()]


def _used_inputs(batch: Batch, encoder_decoder: bool) -> torch.Tensor:
    import torch

    ids = batch["input_ids"]
    if "attention_mask" not in batch:
        return torch.ones_like(ids, dtype=torch.bool)
    used = batch["attention_mask"] != 0
    if not encoder_decoder and _one_per_token(batch):
        used = used | (batch["labels"] != IGNORED)
    return used


def _are_tokens(batch: Batch) -> bool:
    """Whether the labels are tokens or tags in a row, not one label per text or a score per class."""
    labels = batch.get("labels")
    return labels is not None and labels.dim() == 2 and not labels.is_floating_point()


def _one_per_token(batch: Batch) -> bool:
    return _are_tokens(batch) and batch["labels"].shape == batch["input_ids"].shape


def _hull(spans: Spans, rows: list[int]) -> tuple[int, int]:
    """The columns that at least one of the rows uses; never none at all."""
    first, end = min(spans[row][0] for row in rows), max(spans[row][1] for row in rows)
    return first, max(end, first + 1)


def _trim(batch: Batch, inputs: tuple[int, int], targets: tuple[int, int] | None) -> Batch:
    """Keep the used columns: of the inputs, of labels that go with them token by token, and of the decoder's side."""
    width, aligned = batch["input_ids"].shape[1], targets is None and _one_per_token(batch)
    trimmed = {}
    for key, value in batch.items():
        if key == "labels" or key.startswith("decoder_"):
            span = inputs if aligned else targets
        else:
            span = inputs if value.dim() > 1 and value.shape[1] == width else None
        # Heads flatten labels with .view(), which wants them in one piece.
        trimmed[key] = value[:, span[0] : span[1]].contiguous() if span else value
    return trimmed
