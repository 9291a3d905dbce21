"""Micro-batches by tokens: the simulation expects the ones that the loader cuts."""

from __future__ import annotations

import numpy as np
import pytest

from tightfit.data.batches import RowLimits
from tightfit.simulation.worst_case import cut_by_tokens


@pytest.mark.parametrize("tokens", [1, 7, 24, 60, 10_000])
def test_cutting_all_batches_equals_cutting_each_batch(tokens: int) -> None:
    lengths = np.random.default_rng(0).integers(1, 25, (50, 8))
    lengths[-1, 5:] = 0  # the last batch has fewer rows
    batches = -np.sort(-lengths, axis=1)
    cut = cut_by_tokens(batches, tokens)
    for batch, found in zip(batches, cut.transpose(1, 0, 2), strict=True):
        expected = list(RowLimits(8, tokens).cut([length for length in batch.tolist() if length]))
        assert [tuple(shape) for shape in found.tolist() if shape[0]] == expected
        assert sum(rows for rows, _ in expected) == (batch > 0).sum()
        assert all(rows * length <= tokens or rows == 1 for rows, length in expected)
