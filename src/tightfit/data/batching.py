"""Batching: the batch, micro-batch and chunk sizes of a recipe, and which of its micro-batches are largest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tightfit.data.batches import LengthBuckets
from tightfit.data.micro_batches import RowLimits, partition_by_tokens

if TYPE_CHECKING:
    from tightfit.data.batches import IntArray

BatchShape = tuple[int, int]
"""Rows and tokens of a batch."""
Size = Callable[[Sequence[BatchShape]], "np.ndarray[tuple[int, ...], np.dtype[np.float64]] | IntArray"]
"""Size of each of several micro-batches, to compare them."""
_CUT_BATCHES = 32
_DEPTH = 12
_INPUTS_PER_LAYER = 24  # what a layer saves and computes in its backward pass, in tensors of the size of its input
_MIN_NO_GRAD_ROWS = 8  # a forward pass without gradients saves no activations


def tokens_of(shapes: Sequence[BatchShape]) -> IntArray:
    """Tokens of each batch shape, padding included."""
    tokens: IntArray = np.array(shapes).prod(axis=1)
    return tokens


@dataclass(frozen=True)
class LargestMicroBatches:
    """The two largest micro-batches, and the batch that holds the largest."""

    shapes: tuple[BatchShape, ...]
    batch: int


@dataclass(frozen=True)
class Batching:
    """The rows and tokens of batches, micro-batches and chunks.

    Batches of several rows are given as an array with one row per batch: the lengths of its texts, longest first, and 0
    where the batch has fewer rows.
    """

    batch_size: int
    """Rows per optimizer step. No strategy may change it."""
    max_length: int
    """Tokens that a text is truncated to."""
    micro_batch_size: int | None = None
    """Rows per micro-batch; None for the whole batch."""
    micro_batch_tokens: int | None = None
    """Tokens per micro-batch, for recipes that limit tokens instead of rows."""
    chunk_rows: int | None = None
    """Rows per chunk of a layer, where layers run in chunks."""
    depth: int | None = None
    """The layers of the model, where known."""
    bucket_batches: int = 0
    """Batches whose rows are sorted by length together (length bucketing); 0 for random order."""

    @property
    def micro_batch_rows(self) -> int:
        """Rows per micro-batch where all texts have the maximum length."""
        return self.limits().rows_for(self.max_length)

    @property
    def no_grad_rows(self) -> int:
        """Rows per forward pass without gradients."""
        return min(self.batch_size, max(self.chunk_rows or self.micro_batch_rows, _MIN_NO_GRAD_ROWS))

    @property
    def sorts(self) -> bool:
        """Whether a batch is sorted by length even where it is not cut into micro-batches."""
        return self.chunk_rows is not None

    def limits(self) -> RowLimits:
        """The limits by which a batch is cut into micro-batches."""
        return RowLimits(min(self.batch_size, self.micro_batch_size or self.batch_size), self.micro_batch_tokens)

    def buckets(self, lengths: Sequence[int]) -> LengthBuckets | None:
        """The length buckets of rows of these lengths; None for random order."""
        return LengthBuckets(lengths, self.batch_size, self.bucket_batches) if self.bucket_batches else None

    def micro_batches(self, batches: IntArray) -> list[BatchShape]:
        """Rows and tokens of every micro-batch."""
        cut = self.limits().cut_all(batches)
        return [(int(rows), int(longest)) for rows, longest in cut.reshape(-1, 2).tolist() if rows]

    def computed_tokens(self, batches: IntArray) -> int:
        """Tokens, padding included, that go through a layer."""
        if self.chunk_rows is None:
            return sum(rows * length for rows, length in self.micro_batches(batches))
        total = 0
        for batch in batches.tolist():
            lengths = [length for length in batch if length]
            chunks = partition_by_tokens(lengths, self.chunk_rows * lengths[0])
            total += sum((chunk.end - chunk.start) * chunk.length for chunk in chunks)
        return total

    def largest(self, batches: IntArray, size: Size = tokens_of) -> LargestMicroBatches:
        """The largest micro-batches; `size` compares those that are cut by tokens."""
        if self.micro_batch_tokens is None:
            return _largest_by_rows(batches, self.micro_batch_rows)
        return _largest_by_size(self.limits().cut_all(batches), size)

    def fullest(self, batches: IntArray) -> tuple[int, ...] | None:
        """The lengths of the batch that needs most memory, if it runs as a whole, in chunks; None otherwise."""
        if self.chunk_rows is None:
            return None
        lengths = [[length for length in batch if length] for batch in batches.tolist()]
        return tuple(lengths[self.fullest_of(lengths)])

    def fullest_of(self, batches: Sequence[Sequence[int]]) -> int:
        """The index of the batch that needs most memory in chunks; only those with the most tokens are cut."""
        most = sorted(range(len(batches)), key=lambda number: -sum(batches[number]))[:_CUT_BATCHES]
        return max(most, key=lambda number: self._chunked_size(batches[number]))

    def _chunked_size(self, lengths: Sequence[int]) -> tuple[int, int]:
        """Each layer keeps its input of all chunks, and one layer is recomputed for one chunk."""
        chunks = partition_by_tokens(lengths, (self.chunk_rows or 1) * lengths[0])
        tokens = [(chunk.end - chunk.start) * chunk.length for chunk in chunks]
        return (self.depth or _DEPTH) * sum(tokens) + _INPUTS_PER_LAYER * max(tokens), sum(lengths)

    @property
    def trial_rows(self) -> int:
        """How many rows of a batch hold its largest micro-batches: the first two, or all if any may be the largest."""
        if self.chunk_rows is not None or self.micro_batch_tokens is not None:
            return self.batch_size
        return 2 * self.micro_batch_rows

    def trial_row(self, longest_first: IntArray) -> BatchShape:
        """The rows and tokens of the pre-flight's first step: the last of a batch's trial rows."""
        return 1, max(1, int(longest_first[longest_first > 0][: self.trial_rows][-1]))

    def largest_batch(self, batches: Sequence[IntArray]) -> int:
        """The index of the batch that needs most memory; the lengths of its rows are given longest first."""
        if self.chunk_rows is not None:
            return self.fullest_of([batch.tolist() for batch in batches])
        return max(range(len(batches)), key=lambda number: self._largest_tokens(batches[number]))

    def _largest_tokens(self, longest_first: IntArray) -> tuple[int, int]:
        """The tokens of a batch's largest micro-batch, and of all of them."""
        return int(tokens_of(self.micro_batches(longest_first[None])).max()), int(longest_first.sum())


def _largest_by_rows(cut: IntArray, rows: int) -> LargestMicroBatches:
    """Rows are sorted by length, so the first micro-batches of a batch are the largest."""
    columns = [slice(start, start + rows) for start in range(0, cut.shape[1], rows)[:2]]
    return LargestMicroBatches(
        tuple(_longest(cut[:, part]) for part in columns),
        int(cut[:, 0].argmax()),
    )


def _longest(micro_batches: IntArray) -> BatchShape:
    """Rows and tokens of the longest of some micro-batches."""
    return micro_batches.shape[1], max(1, int(micro_batches[:, 0].max()))


def _largest_by_size(cut: IntArray, size: Size) -> LargestMicroBatches:
    """Few long rows or many short ones may be larger, so micro-batches are compared by `size`."""
    shapes = tuple(_largest_shape(_distinct_shapes(part), size) for part in (cut, cut[1:]) if part.any())
    holds = (cut == np.array(shapes[0])).all(axis=2).any(axis=0)
    return LargestMicroBatches(shapes, int(holds.argmax()))


def _largest_shape(shapes: Sequence[BatchShape], size: Size) -> BatchShape:
    return shapes[int(size(shapes).argmax())]


def _distinct_shapes(cut: IntArray) -> list[BatchShape]:
    """Each shape once: there may be a hundred thousand micro-batches, but only some hundred distinct shapes."""
    rows, longest = cut.reshape(-1, 2).T
    codes = np.unique(rows * (width := int(longest.max()) + 1) + longest)
    return [(int(code) // width, int(code) % width) for code in codes if code >= width]
