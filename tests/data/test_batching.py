"""Batching: one rule cuts batches of tensors, lists of lengths and whole data sets alike."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tightfit.data.batching import Batching
from tightfit.data.micro_batches import RowLimits, micro_batches

LIMITS = [(8, None), (3, None), (1, None), (8, 1), (8, 7), (8, 24), (5, 60), (8, 10_000)]


def cut_one_by_one(lengths: list[int], limits: RowLimits) -> list[tuple[int, int]]:
    """Take rows, longest first, until the next would exceed the limit at the length of the first."""
    cut = []
    while lengths:
        rows = 1
        while rows < len(lengths) and rows + 1 <= limits.rows and (rows + 1) * lengths[0] <= (limits.tokens or 10**9):
            rows += 1
        cut.append((min(rows, *limits.found.values()) if limits.found else rows, lengths[0]))
        lengths = lengths[cut[-1][0] :]
    return cut


@pytest.mark.parametrize(("rows", "tokens"), LIMITS)
@pytest.mark.parametrize("found", [{}, {0: 2}], ids=["", "after out of memory"])
def test_all_ways_to_cut_a_batch_agree(rows: int, tokens: int | None, found: dict[int, int]) -> None:
    lengths = np.random.default_rng(0).integers(1, 25, (50, 8))
    lengths[-1, 5:] = 0  # the last batch has fewer rows
    batches, limits = -np.sort(-lengths, axis=1), RowLimits(rows, tokens)
    limits.tighten(found)
    cut = limits.cut_all(batches)
    for batch, shapes in zip(batches, cut.transpose(1, 0, 2), strict=True):
        sorted_lengths = [int(length) for length in batch if length]
        expected = cut_one_by_one(sorted_lengths, limits)
        assert [tuple(shape) for shape in shapes.tolist() if shape[0]] == expected
        assert limits.cut(sorted_lengths) == expected
        parts = [part["input_ids"].shape for _, part in micro_batches(batch_of(sorted_lengths), limits)]
        assert [tuple(shape) for shape in parts] == expected


def batch_of(lengths: list[int]) -> dict[str, torch.Tensor]:
    """Rows of these lengths, shuffled."""
    shuffled = [lengths[row] for row in torch.randperm(len(lengths), generator=torch.Generator().manual_seed(1))]
    mask = torch.arange(max(lengths))[None] < torch.tensor(shuffled)[:, None]
    return {"input_ids": mask.long(), "attention_mask": mask.long(), "labels": torch.zeros(len(lengths)).long()}


def test_the_tokens_that_are_computed_include_padding() -> None:
    batches = np.array([[9, 5, 2, 1], [4, 4, 0, 0]])
    assert Batching(4, 16).computed_tokens(batches) == 4 * 9 + 2 * 4
    assert Batching(4, 16, micro_batch_size=2).computed_tokens(batches) == 2 * 9 + 2 * 2 + 2 * 4
    assert Batching(4, 16, micro_batch_tokens=9).computed_tokens(batches) == 9 + 5 + 2 * 2 + 2 * 4
    assert Batching(4, 16, chunk_rows=4).computed_tokens(batches) <= 4 * 9 + 2 * 4


def test_the_largest_micro_batches_are_those_of_the_longest_rows() -> None:
    batches = np.array([[9, 5, 2, 1], [12, 4, 4, 4], [8, 8, 8, 8]])
    by_rows = Batching(4, 16, micro_batch_size=2).largest(batches)
    assert by_rows.shapes == ((2, 12), (2, 8))
    assert by_rows.batch == 1
    by_tokens = Batching(4, 16, micro_batch_tokens=24).largest(batches)
    assert by_tokens.shapes[0] == (2, 12)
    assert Batching(4, 16, micro_batch_size=1).trial_row(batches[0]) == (1, 5)
    assert Batching(4, 16, micro_batch_size=2).trial_row(np.array([9, 5, 2, 0])) == (1, 2)
    assert Batching(4, 16, chunk_rows=2).fullest(batches) == (8, 8, 8, 8)
    assert Batching(4, 16).fullest(batches) is None
