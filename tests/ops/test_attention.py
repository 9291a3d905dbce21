"""Tiled attention against attention with full matrices, dropout included."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tightfit.ops.attention as attention
from tightfit.ops.dropout import RandomBits, draw_seed, dropout

P = 0.25


def inputs(rows: int = 5, heads: int = 4, length: int = 12, size: int = 8) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(rows, length, heads, size).transpose(1, 2).requires_grad_() for _ in range(3)]


def full_attention(query: Any, key: Any, value: Any, mask: Any, dropout_mask: torch.Tensor) -> torch.Tensor:
    scores = query @ key.transpose(2, 3) * query.shape[-1] ** -0.5
    if mask is not None:
        scores = scores + (mask if mask.is_floating_point() else torch.zeros(()).where(mask, -1e30))
    probs = scores.softmax(-1) * dropout_mask.view(scores.shape) / (1 - P)
    return (probs @ value).transpose(1, 2)


def masks(kind: str, rows: int, length: int) -> torch.Tensor | None:
    padding = torch.arange(length)[None, None, None] < torch.arange(3, 3 + rows)[:, None, None, None]
    return {
        "none": None,
        "padding": padding.expand(rows, 1, length, length),
        "causal": torch.ones(length, length).tril().bool()[None, None],
        "causal without a mask": torch.ones(length, length).tril().bool()[None, None],
        "additive": torch.randn(rows, 1, 1, length),
    }[kind]


@pytest.mark.parametrize("kind", ["none", "padding", "causal", "causal without a mask", "additive"])
@pytest.mark.parametrize("tile", [1, 1200, 1 << 18])
def test_outputs_and_gradients_equal_those_of_full_attention(
    kind: str, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "_TILE", tile)
    query, key, value = inputs()
    mask = masks(kind, 5, 12)
    monkeypatch.setattr(attention, "draw_seed", lambda like: 7)
    random = RandomBits(7)
    rows_per_tile = max(1, min(5, tile // (4 * 12 * 12)))
    dropout_masks = [
        random.fill_dropout_mask(torch.empty(min(rows_per_tile, 5 - s) * 4 * 144, dtype=torch.bool), P)
        for s in range(0, 5, rows_per_tile)
    ]
    expected = full_attention(query, key, value, mask, torch.cat(dropout_masks))
    causal = kind == "causal without a mask"
    passed = None if causal else mask
    found, _ = attention.tiled_attention(SimpleNamespace(is_causal=causal), query, key, value, passed, dropout=P)
    assert torch.allclose(found, expected, atol=1e-6)
    grad_out = torch.randn_like(expected)
    theirs = torch.autograd.grad(expected, (query, key, value), grad_out)
    ours = torch.autograd.grad(found, (query, key, value), grad_out)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_without_dropout_the_fused_kernel_of_torch_is_used() -> None:
    query, key, value = inputs()
    found, _ = attention.tiled_attention(SimpleNamespace(is_causal=False), query, key, value, None)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2)
    assert torch.equal(found, expected)


def test_grouped_query_heads_share_keys_and_values() -> None:
    query, key, value = inputs()
    torch.manual_seed(3)
    few, _ = attention.tiled_attention(
        SimpleNamespace(is_causal=False), query, key[:, :2], value[:, :2], None, dropout=0.1
    )
    torch.manual_seed(3)
    key, value = (t[:, :2].repeat_interleave(2, dim=1) for t in (key, value))
    many, _ = attention.tiled_attention(SimpleNamespace(is_causal=False), query, key, value, None, dropout=0.1)
    assert torch.equal(few, many)


def test_a_seed_reproduces_the_dropout_mask() -> None:
    torch.manual_seed(1)
    first = RandomBits(draw_seed(torch.ones(1))).fill_dropout_mask(torch.empty(1001, dtype=torch.bool), 0.1)
    torch.manual_seed(1)
    again = RandomBits(draw_seed(torch.ones(1))).fill_dropout_mask(torch.empty(1001, dtype=torch.bool), 0.1)
    other = RandomBits(draw_seed(torch.ones(1))).fill_dropout_mask(torch.empty(1001, dtype=torch.bool), 0.1)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("p", [0.02, 0.1, 0.5])
def test_dropout_masks_have_the_right_mean_and_no_autocorrelation(p: float) -> None:
    count = 1 << 21
    mask = RandomBits(11).fill_dropout_mask(torch.empty(count, dtype=torch.bool), p).float()
    noise = (p * (1 - p) / count) ** 0.5
    assert abs(float(mask.mean()) - (1 - p)) < 4 * noise + 1 / 65536
    for distance in (1, 2, 3, 4, 128):
        covariance = float(((mask[distance:] - mask.mean()) * (mask[:-distance] - mask.mean())).mean())
        assert abs(covariance) < 5 * p * (1 - p) / count**0.5


def test_dropout_keeps_the_mean_and_applies_the_same_mask_to_gradients() -> None:
    values = torch.ones(200_000, requires_grad=True)
    out = dropout(values, 0.1)
    assert float(out.detach().mean()) == pytest.approx(1, abs=0.01)
    out.sum().backward()
    assert torch.equal(values.grad, out.detach())


def test_in_bf16_products_are_rounded_and_softmax_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside fp32 attention with the same dropout mask, the error is that of bf16 products."""
    monkeypatch.setattr(attention, "draw_seed", lambda like: 7)
    wide = inputs(length=64, size=16)
    narrow = [tensor.detach().to(torch.bfloat16).requires_grad_() for tensor in wide]
    padding = masks("padding", 5, 64)
    grad_out = torch.randn(5, 64, 4, 16)
    results = []
    for operands in (wide, narrow):
        out, _ = attention.tiled_attention(SimpleNamespace(is_causal=False), *operands, padding, dropout=P)
        assert out.dtype is operands[0].dtype
        gradients = torch.autograd.grad(out, operands, grad_out.to(out.dtype))
        results.append([out, *gradients])
    for exact, rounded in zip(*results, strict=True):
        assert rounded.dtype is torch.bfloat16
        assert float((rounded.float() - exact).norm() / exact.norm()) < 0.02
