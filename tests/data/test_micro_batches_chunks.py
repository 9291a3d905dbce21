"""Chunks: rows are partitioned within a token limit at the least cost, and hidden states survive the round trip."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch

from tightfit.data.micro_batches import Chunk, partition_by_tokens
from tightfit.ops.buffer_pool import BufferPool
from tightfit.ops.chunked_layer import join_hidden, split_hidden

COST = 64


def every_partition(lengths: list[int], tokens: int) -> list[list[Chunk]]:
    rows = len(lengths)
    partitions = [
        [Chunk(a, b, max(lengths[a:b])) for a, b in zip((0, *inner), (*inner, rows), strict=True)]
        for count in range(rows)
        for inner in combinations(range(1, rows), count)
    ]
    return [
        chunks
        for chunks in partitions
        if all((c.end - c.start) * c.length <= tokens or c.end - c.start == 1 for c in chunks)
    ]


def cost(chunks: list[Chunk]) -> int:
    return sum((chunk.end - chunk.start) * chunk.length + COST for chunk in chunks)


@pytest.mark.parametrize("seed", range(6))
def test_no_other_partition_costs_less(seed: int) -> None:
    generator = np.random.default_rng(seed)
    lengths = sorted((int(n) for n in generator.integers(3, 129, size=9)), reverse=True)
    for tokens in (100, 256, 512, 4096):
        found = partition_by_tokens(lengths, tokens)
        possible = every_partition(lengths, tokens)
        assert found in possible
        assert cost(found) == min(cost(chunks) for chunks in possible)


def test_rows_of_equal_length_fill_chunks() -> None:
    assert partition_by_tokens([128] * 32, 1024) == [Chunk(start, start + 8, 128) for start in range(0, 32, 8)]
    assert partition_by_tokens([500], 100) == [Chunk(0, 1, 500)]


def test_hidden_states_and_gradients_survive_split_and_join() -> None:
    chunks = [Chunk(0, 2, 5), Chunk(2, 3, 4), Chunk(3, 6, 2)]
    hidden = torch.randn(6, 5, 3, dtype=torch.float64, requires_grad=True)
    pool = BufferPool()
    parts = split_hidden(hidden, chunks, pool)
    assert [tuple(part.shape) for part in parts] == [(2, 5, 3), (1, 4, 3), (3, 2, 3)]
    assert all(part.untyped_storage().nbytes() == part.numel() * 8 for part in parts)
    joined = join_hidden(parts, chunks, 5, pool)
    used = torch.zeros(6, 5, 1)
    for chunk in chunks:
        used[chunk.start : chunk.end, : chunk.length] = 1
    assert torch.equal(joined, hidden * used)
    (joined**2).sum().backward()
    assert torch.equal(hidden.grad, 2 * hidden.detach() * used)
