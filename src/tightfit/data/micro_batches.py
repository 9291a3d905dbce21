"""Micro-batches: how a batch is cut into micro-batches and chunks.

- Micro-batches: a batch sorted by length and cut, each part without the padding it does not need. `RowLimits` is the
  only place that decides how a batch is cut, for real tensors and for the lengths of a simulation.
- Chunks: rows that pass through a layer together, cut where padding costs least.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import torch

    from tightfit.data.batches import Batch, IntArray

    Spans = list[tuple[int, int]]

IGNORED = -100  # the label that loss functions skip
_DECIDES_LENGTHS = ("input_ids", "attention_mask", "labels")  # read on the host: small copies instead of kernels
_LENGTH_MARGIN = 8  # after an out-of-memory error the limit also applies to texts up to an eighth shorter
_CHUNK_COST_TOKENS = 64  # measured on a CPU: a row takes 1.07 times as long in a matmul of 512 rows as in one of 1,024


class RowLimits:
    """The largest micro-batch: the recipe's number of rows or tokens, and fewer for lengths that ran out of memory."""

    def __init__(self, rows: int, tokens: int | None = None, *, where: str = "micro_batches") -> None:
        self.rows, self.tokens, self.where = rows, tokens, where
        self.found: dict[int, int] = {}
        """Limits found by running out of memory: minimum length in tokens -> rows."""

    def rows_for(self, length: int) -> int:
        """The rows of a micro-batch whose longest text has `length` tokens."""
        return int(self._rows_for(np.array(length)))

    def _rows_for(self, lengths: IntArray) -> IntArray:
        rows = np.full_like(lengths, self.rows)
        if self.tokens is not None:
            rows = np.minimum(rows, np.maximum(1, self.tokens // np.maximum(1, lengths)))
        for shortest, limit in self.found.items():
            rows = np.where(lengths >= shortest, np.minimum(rows, limit), rows)
        return rows

    def cut(self, lengths: Sequence[int]) -> list[tuple[int, int]]:
        """The rows and tokens of the micro-batches that texts, sorted longest first, are cut into."""
        cut = self.cut_all(np.maximum(1, np.array([lengths])))[:, 0]
        return [(int(rows), int(length)) for rows, length in cut.tolist()]

    def cut_all(self, batches: IntArray) -> IntArray:
        """The same for many batches, given as rows of lengths that end in 0 where a batch has fewer rows.

        Returns rows and tokens: the first micro-batches of all batches, the second ones, and so on; 0 where a batch has
        fewer micro-batches.
        """
        batch_rows, index = (batches > 0).sum(axis=1), np.arange(len(batches))
        start, cut = np.zeros_like(batch_rows), []
        while (left := batch_rows - start).any():
            longest = np.where(left > 0, batches[index, np.minimum(start, batches.shape[1] - 1)], 0)
            rows = np.minimum(self._rows_for(longest), left)
            cut.append(np.stack([rows, longest], axis=1))
            start = start + rows
        return np.stack(cut)

    def halve(self, rows: int, length: int) -> bool:
        """Halve the limit after `rows` rows of this length ran out of memory; False if one row was already too many."""
        if rows <= 1:
            return False
        self.tighten({length - length // _LENGTH_MARGIN: rows // 2})
        return True

    def tighten(self, limits: dict[int, int]) -> None:
        """Add limits (length -> rows) wherever they are stricter."""
        for length, rows in limits.items():
            self.found[length] = min(rows, self.found.get(length, rows))


def shape_of(batch: Batch) -> tuple[int, int]:
    """Rows and tokens of a batch; a batch without tokens, such as images, counts one per row."""
    if "input_ids" in batch and batch["input_ids"].dim() == 2:
        rows, tokens = batch["input_ids"].shape
        return rows, tokens
    return len(next(iter(batch.values()))), 1


def is_splittable(batch: Any) -> bool:
    """Whether a batch is a mapping to tensors that all have its rows as their first dimension."""
    if not isinstance(batch, Mapping) or not batch:
        return False
    tensors = list(batch.values())
    return all(hasattr(value, "dim") and value.dim() for value in tensors) and len({len(v) for v in tensors}) == 1


def micro_batches(
    batch: Batch, rows: int | RowLimits, *, encoder_decoder: bool = False, sort: bool = False
) -> Iterator[tuple[list[int], Batch]]:
    """Cut a batch into micro-batches of at most `rows` rows, longest first; yields each with its rows' indices."""
    limits = RowLimits(rows) if isinstance(rows, int) else rows
    if "input_ids" not in batch:
        yield from _consecutive(batch, limits)
        return
    host = {name: batch[name].cpu() for name in _DECIDES_LENGTHS if name in batch}
    inputs = used_spans(_used_inputs(host, encoder_decoder))
    targets = used_spans(host["labels"] != IGNORED) if encoder_decoder and _has_token_labels(host) else None
    order = sorted(range(len(inputs)), key=lambda row: inputs[row][0] - inputs[row][1])
    sizes = [size for size, _ in limits.cut([inputs[row][1] - inputs[row][0] for row in order])]
    if len(sizes) == 1 and not sort:
        order.sort()
    for size in sizes:
        chosen, order = order[:size], order[size:]
        is_whole = chosen == list(range(len(inputs)))
        part = batch if is_whole else {key: value[chosen] for key, value in batch.items()}
        yield chosen, _trim(part, _union(inputs, chosen), _union(targets, chosen) if targets else None)


def _consecutive(batch: Batch, limits: RowLimits) -> Iterator[tuple[list[int], Batch]]:
    """The micro-batches of a batch without tokens, in its order."""
    left = list(range(shape_of(batch)[0]))
    for size, _ in limits.cut([1] * len(left)):
        chosen, left = left[:size], left[size:]
        yield chosen, {key: value[chosen[0] : chosen[-1] + 1] for key, value in batch.items()}


def used_spans(used: torch.Tensor) -> Spans:
    """The first used column of each row and the one after its last."""
    import torch

    width = used.shape[1]
    first = used.int().argmax(dim=1)
    end = width - used.flip(1).int().argmax(dim=1)
    end = torch.where(used.any(dim=1), end, first)
    return [(int(a), int(b)) for a, b in torch.stack([first, end], dim=1).tolist()]


def _used_inputs(batch: Batch, encoder_decoder: bool) -> torch.Tensor:
    """Which input positions are not padding."""
    import torch

    ids = batch["input_ids"]
    if "attention_mask" not in batch:
        return torch.ones_like(ids, dtype=torch.bool)
    used = batch["attention_mask"] != 0
    if not encoder_decoder and _labels_match_inputs(batch):
        used = used | (batch["labels"] != IGNORED)
    return used


def _has_token_labels(batch: Batch) -> bool:
    """Whether the labels are token ids or tags, not one label per text or a score per class."""
    labels = batch.get("labels")
    return labels is not None and labels.dim() == 2 and not labels.is_floating_point()


def _labels_match_inputs(batch: Batch) -> bool:
    """Whether there is one label per input token."""
    return _has_token_labels(batch) and batch["labels"].shape == batch["input_ids"].shape


def _union(spans: Spans, rows: list[int]) -> tuple[int, int]:
    """The columns that at least one of the rows uses; at least one column."""
    first, end = min(spans[row][0] for row in rows), max(spans[row][1] for row in rows)
    return first, max(end, first + 1)


def _trim(batch: Batch, inputs: tuple[int, int], targets: tuple[int, int] | None) -> Batch:
    """Keep the used columns of the inputs, of labels that match them token by token, and of the decoder's tensors."""
    width, aligned = batch["input_ids"].shape[1], targets is None and _labels_match_inputs(batch)
    trimmed = {}
    for key, value in batch.items():
        if key == "labels" or key.startswith("decoder_"):
            span = inputs if aligned else targets
        else:
            span = inputs if value.dim() > 1 and value.shape[1] == width else None
        # Heads flatten labels with .view(), which needs them contiguous.
        trimmed[key] = value[:, span[0] : span[1]].contiguous() if span else value
    return trimmed


# Chunks


class Chunk(NamedTuple):
    """Consecutive rows of a batch, and the tokens of the longest of them."""

    start: int
    end: int
    length: int


def partition_by_tokens(lengths: Sequence[int], tokens: int) -> list[Chunk]:
    """Cut rows, in their order, into chunks of at most `tokens` tokens, at the least cost.

    Padding costs as much as other tokens, and each chunk has a small fixed cost. A row longer than `tokens` is a chunk
    by itself.
    """
    best: list[tuple[int, Chunk | None]] = [(0, None)]
    for end in range(1, len(lengths) + 1):
        choices = []
        longest = 0
        for start in range(end - 1, -1, -1):
            longest = max(longest, lengths[start], 1)
            size = (end - start) * longest
            if size > tokens and start < end - 1:
                break
            choices.append((best[start][0] + size + _CHUNK_COST_TOKENS, Chunk(start, end, longest)))
        best.append(min(choices))
    return _backtrack(best)


def _backtrack(best: list[tuple[int, Chunk | None]]) -> list[Chunk]:
    chunks: list[Chunk] = []
    last = best[-1][1]
    while last is not None:
        chunks.append(last)
        last = best[last.start][1]
    return chunks[::-1]
