"""Rows cut into pieces of some tokens: never too many, and none cheaper."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch

from tightfit.data.batches import Chunk, partition_by_tokens
from tightfit.ops.buffer_pool import BufferPool
from tightfit.ops.chunked_layer import join_hidden, split_hidden

COST = 64


def every_cut(lengths: list[int], tokens: int) -> list[list[Chunk]]:
    rows = len(lengths)
    cuts = [
        [Chunk(a, b, max(lengths[a:b])) for a, b in zip((0, *inner), (*inner, rows), strict=True)]
        for count in range(rows)
        for inner in combinations(range(1, rows), count)
    ]
    return [cut for cut in cuts if all((p.end - p.start) * p.length <= tokens or p.end - p.start == 1 for p in cut)]


def cost(chunks: list[Chunk]) -> int:
    return sum((chunk.end - chunk.start) * chunk.length + COST for chunk in chunks)


@pytest.mark.parametrize("seed", range(6))
def test_no_other_cut_is_cheaper(seed: int) -> None:
    chance = np.random.default_rng(seed)
    lengths = sorted((int(n) for n in chance.integers(3, 129, size=9)), reverse=True)
    for tokens in (100, 256, 512, 4096):
        found = partition_by_tokens(lengths, tokens)
        possible = every_cut(lengths, tokens)
        assert found in possible
        assert cost(found) == min(cost(cut) for cut in possible)


def test_equal_rows_make_full_pieces() -> None:
    assert partition_by_tokens([128] * 32, 1024) == [Chunk(start, start + 8, 128) for start in range(0, 32, 8)]
    assert partition_by_tokens([500], 100) == [Chunk(0, 1, 500)]


def test_states_and_their_gradients_come_back_as_they_were() -> None:
    chunks = [Chunk(0, 2, 5), Chunk(2, 3, 4), Chunk(3, 6, 2)]
    states = torch.randn(6, 5, 3, dtype=torch.float64, requires_grad=True)
    rooms = BufferPool()
    parts = split_hidden(states, chunks, rooms)
    assert [tuple(part.shape) for part in parts] == [(2, 5, 3), (1, 4, 3), (3, 2, 3)]
    assert all(part.untyped_storage().nbytes() == part.numel() * 8 for part in parts)
    whole = join_hidden(parts, chunks, 5, rooms)
    used = torch.zeros(6, 5, 1)
    for chunk in chunks:
        used[chunk.start : chunk.end, : chunk.length] = 1
    assert torch.equal(whole, states * used)
    (whole**2).sum().backward()
    assert torch.equal(states.grad, 2 * states.detach() * used)
