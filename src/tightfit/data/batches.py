"""Limits: how many texts of a length go through at once, and what running out of memory taught about it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import torch

    from tightfit.job import Job

    Batch = dict[str, torch.Tensor]
    Spans = list[tuple[int, int]]
    Numbers = np.ndarray[Any, np.dtype[Any]]


_NEIGHBOURS = 8  # texts shorter by up to an eighth would fail next, so they learn from it too


class RowLimits:
    """The recipe's number of rows or of tokens, and fewer for texts of lengths that were too large."""

    def __init__(self, rows: int, tokens: int | None = None) -> None:
        self.rows, self.tokens = rows, tokens
        self.learned: dict[int, int] = {}
        """Texts of at least so many tokens: at most so many rows."""

    def at(self, length: int) -> int:
        """Rows that may go through at once where the longest text has so many tokens."""
        room = self.rows if self.tokens is None else max(1, self.tokens // max(1, length))
        return min([self.rows, room, *(rows for shortest, rows in self.learned.items() if shortest <= length)])

    def cut(self, lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Rows and tokens of the slices that texts are cut into, the longest first."""
        start = 0
        while start < len(lengths):
            rows = min(self.at(lengths[start]), len(lengths) - start)
            yield rows, lengths[start]
            start += rows

    def halve(self, rows: int, length: int) -> bool:
        """So many rows of this length were too many; False if there is nothing left to halve."""
        if rows <= 1:
            return False
        self.learn({length - length // _NEIGHBOURS: rows // 2})
        return True

    def learn(self, table: dict[int, int]) -> None:
        """Take over what is stricter."""
        for length, rows in table.items():
            self.learned[length] = min(rows, self.learned.get(length, rows))


# Slices: a batch sorted by length, cut into pieces, each without the padding it does not need.


IGNORED = -100  # the label that losses pass over


def micro_batches(
    batch: Batch, rows: int | RowLimits, *, encoder_decoder: bool = False, sort: bool = False
) -> Iterator[tuple[list[int], Batch]]:
    """Cut a batch into slices of at most `rows` rows, longest first; with each, the rows of the batch it holds."""
    limits = RowLimits(rows) if isinstance(rows, int) else rows
    inputs = used_spans(_used_inputs(batch, encoder_decoder))
    targets = used_spans(batch["labels"] != IGNORED) if encoder_decoder and _are_tokens(batch) else None
    order = list(range(len(inputs)))
    if sort or len(order) > limits.at(max(end - first for first, end in inputs)):
        order.sort(key=lambda row: inputs[row][0] - inputs[row][1])
    while order:
        first, end = inputs[order[0]]
        chosen = order[: limits.at(end - first)]
        order = order[len(chosen) :]
        whole = chosen == list(range(len(inputs)))
        chunk = batch if whole else {key: value[chosen] for key, value in batch.items()}
        yield chosen, _trim(chunk, _hull(inputs, chosen), _hull(targets, chosen) if targets else None)


def used_spans(used: torch.Tensor) -> Spans:
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


# Pieces: where a batch of sorted rows is best cut.


_TOKENS_A_PIECE_COSTS = 64  # measured on a CPU: a matrix product of 512 rows takes 1.07 times as long a row as of 1,024


class Chunk(NamedTuple):
    """Some rows of a batch, and the tokens of the longest of them."""

    start: int
    end: int
    length: int


def partition_by_tokens(lengths: Sequence[int], tokens: int) -> list[Chunk]:
    """Cut rows, in their order, into pieces of at most so many tokens, where it costs least.

    Padding costs what its tokens cost, and each piece costs a little by itself. A row longer than that is alone.
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
            choices.append((best[start][0] + size + _TOKENS_A_PIECE_COSTS, Chunk(start, end, longest)))
        best.append(min(choices))
    return _walk_back(best)


def _walk_back(best: list[tuple[int, Chunk | None]]) -> list[Chunk]:
    chunks: list[Chunk] = []
    last = best[-1][1]
    while last is not None:
        chunks.append(last)
        last = best[last.start][1]
    return chunks[::-1]


# Order: which rows meet in which batch. It follows from the seed, so it is known before the training.


_BATCHES_LOOKED_AT, _ROWS_LOOKED_AT = 20_000, 5_000_000  # some seconds, some 40 MB


def num_steps(job: Job, rows: int) -> int:
    """How many batches a training takes in all."""
    return job.max_steps or math.ceil(job.epochs * math.ceil(rows / job.batch_size))


@dataclass(frozen=True)
class LengthBuckets:
    """Rows of like length meet in a batch."""

    lengths: Sequence[int]
    batch_size: int
    pool: int
    """How many batches are sorted by length together."""

    def order(self, seed: int) -> Numbers:
        """All rows: shuffled, sorted within each pool and cut into batches, which are shuffled again."""
        import torch

        from tightfit.compat import get_length_grouped_indices

        chance = torch.Generator().manual_seed(seed)
        rows = np.array(get_length_grouped_indices(self.lengths, self.batch_size, self.pool, chance))
        size = min(self.batch_size, len(rows))
        whole = len(rows) // size
        batches, rest = rows[: whole * size].reshape(whole, size), rows[whole * size :]
        return np.concatenate([batches[torch.randperm(whole, generator=chance).numpy()].ravel(), rest])


class BucketSampler:
    """Deals out the rows of one epoch after the other."""

    def __init__(self, buckets: LengthBuckets, seed: int) -> None:
        self.buckets, self.seed, self.epoch = buckets, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Called by the loader."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.buckets.lengths)

    def __iter__(self) -> Iterator[int]:
        return iter(self.buckets.order(self.seed + self.epoch).tolist())


def batches_of(job: Job, rows: int, buckets: LengthBuckets | None = None) -> Iterator[Numbers]:
    """The rows of every batch of a training, in order: as accelerate's seeded sampler, or ours, deals them out."""
    left = num_steps(job, rows)
    epoch = 0
    while left:
        order = buckets.order(job.seed + epoch) if buckets else epoch_order(rows, job.seed + epoch)
        starts = range(0, rows, job.batch_size)[:left]
        yield from (order[start : start + job.batch_size] for start in starts)
        left -= len(starts)
        epoch += 1


def sample_batches(job: Job, rows: int, buckets: LengthBuckets | None = None) -> Iterator[Numbers]:
    """An epoch's batches and more, of a training without end not all: it would never begin."""
    most = max(math.ceil(rows / job.batch_size), min(_BATCHES_LOOKED_AT, _ROWS_LOOKED_AT // job.batch_size))
    return itertools.islice(batches_of(job, rows, buckets), most)


def rows_seen(job: Job, rows: int, buckets: LengthBuckets | None = None) -> Numbers:
    """The rows that a training meets at all: with few steps not every row."""
    if num_steps(job, rows) >= math.ceil(rows / job.batch_size):
        return np.arange(rows)
    return np.unique(np.concatenate(list(batches_of(job, rows, buckets))))


def epoch_order(rows: int, seed: int) -> Numbers:
    """All rows, shuffled."""
    import torch

    order: Numbers = torch.randperm(rows, generator=torch.Generator().manual_seed(seed)).numpy()
    return order
