"""Attention in tiles against the plain matrices, dropout included."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tightfit.ops.attention as attention
from tightfit.ops.dropout import RandomBits, draw_seed, dropout

DROPPED = 0.25


def inputs(rows: int = 5, heads: int = 4, length: int = 12, size: int = 8) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(rows, length, heads, size).transpose(1, 2).requires_grad_() for _ in range(3)]


def plain(query: Any, key: Any, value: Any, mask: Any, keep: torch.Tensor) -> torch.Tensor:
    scores = query @ key.transpose(2, 3) * query.shape[-1] ** -0.5
    if mask is not None:
        scores = scores + (mask if mask.is_floating_point() else torch.zeros(()).where(mask, -1e30))
    shares = scores.softmax(-1) * keep.view(scores.shape) / (1 - DROPPED)
    return (shares @ value).transpose(1, 2)


def masks(kind: str, rows: int, length: int) -> torch.Tensor | None:
    padding = torch.arange(length)[None, None, None] < torch.arange(3, 3 + rows)[:, None, None, None]
    return {
        "none": None,
        "padding": padding.expand(rows, 1, length, length),
        "causal": torch.ones(length, length).tril().bool()[None, None],
        "causal without a mask": torch.ones(length, length).tril().bool()[None, None],
        "numbers": torch.randn(rows, 1, 1, length),
    }[kind]


@pytest.mark.parametrize("kind", ["none", "padding", "causal", "causal without a mask", "numbers"])
@pytest.mark.parametrize("tile", [1, 1200, 1 << 18])
def test_outputs_and_gradients_are_those_of_plain_attention(
    kind: str, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "_TILE", tile)
    query, key, value = inputs()
    mask = masks(kind, 5, 12)
    monkeypatch.setattr(attention, "draw_seed", lambda like: 7)
    keep = RandomBits(7)
    rows_at_once = max(1, min(5, tile // (4 * 12 * 12)))
    drawn = [
        keep.keep(torch.empty(min(rows_at_once, 5 - s) * 4 * 144, dtype=torch.bool), DROPPED)
        for s in range(0, 5, rows_at_once)
    ]
    expected = plain(query, key, value, mask, torch.cat(drawn))
    causal = kind == "causal without a mask"
    given = None if causal else mask
    found, _ = attention.tiled_attention(SimpleNamespace(is_causal=causal), query, key, value, given, dropout=DROPPED)
    assert torch.allclose(found, expected, atol=1e-6)
    arriving = torch.randn_like(expected)
    theirs = torch.autograd.grad(expected, (query, key, value), arriving)
    ours = torch.autograd.grad(found, (query, key, value), arriving)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_without_dropout_torch_does_it() -> None:
    query, key, value = inputs()
    found, _ = attention.tiled_attention(SimpleNamespace(is_causal=False), query, key, value, None)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2)
    assert torch.equal(found, expected)


def test_grouped_heads_share_keys() -> None:
    query, key, value = inputs()
    torch.manual_seed(3)
    few, _ = attention.tiled_attention(
        SimpleNamespace(is_causal=False), query, key[:, :2], value[:, :2], None, dropout=0.1
    )
    torch.manual_seed(3)
    key, value = (t[:, :2].repeat_interleave(2, dim=1) for t in (key, value))
    many, _ = attention.tiled_attention(SimpleNamespace(is_causal=False), query, key, value, None, dropout=0.1)
    assert torch.equal(few, many)


def test_a_seed_gives_the_same_choice_again() -> None:
    torch.manual_seed(1)
    first = RandomBits(draw_seed(torch.ones(1))).keep(torch.empty(1001, dtype=torch.bool), 0.1)
    torch.manual_seed(1)
    again = RandomBits(draw_seed(torch.ones(1))).keep(torch.empty(1001, dtype=torch.bool), 0.1)
    other = RandomBits(draw_seed(torch.ones(1))).keep(torch.empty(1001, dtype=torch.bool), 0.1)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("dropped", [0.02, 0.1, 0.5])
def test_the_share_is_right_and_neighbours_know_nothing_of_each_other(dropped: float) -> None:
    count = 1 << 21
    keep = RandomBits(11).keep(torch.empty(count, dtype=torch.bool), dropped).float()
    noise = (dropped * (1 - dropped) / count) ** 0.5
    assert abs(float(keep.mean()) - (1 - dropped)) < 4 * noise + 1 / 65536
    for distance in (1, 2, 3, 4, 128):
        together = float(((keep[distance:] - keep.mean()) * (keep[:-distance] - keep.mean())).mean())
        assert abs(together) < 5 * dropped * (1 - dropped) / count**0.5


def test_dropout_keeps_the_mean_and_sends_gradients_through_what_is_kept() -> None:
    values = torch.ones(200_000, requires_grad=True)
    kept = dropout(values, 0.1)
    assert float(kept.detach().mean()) == pytest.approx(1, abs=0.01)
    kept.sum().backward()
    assert torch.equal(values.grad, kept.detach())
