"""Tiled attention with dropout for CPUs: a few rows at a time, in the processor's cache.

torch's fused attention does not support dropout on a CPU, so training with dropout falls back to full tokens x tokens
matrices: six or seven for every head of every row, written to and read from main memory. Here a tile of them is
computed, used and overwritten in the cache, and the backward pass recomputes it from queries and keys. No tokens x
tokens matrix is saved. In bf16 the products are in bf16, and what is between them, softmax and dropout, is in fp32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tightfit.compat import softmax_backward_into
from tightfit.ops.buffer_pool import pooled_empty
from tightfit.ops.dropout import MASK_DTYPE, RandomBits, draw_seed
from tightfit.ops.fake import representative

NAME = "tightfit"
_TILE = 1 << 18  # elements of the tokens x tokens matrices in one tile
_DTYPES = (torch.float32, torch.bfloat16)


def register() -> str:
    """Register the attention with transformers, with the masks of its fused attention; returns its name."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    from tightfit.compat import sdpa_mask

    ALL_ATTENTION_FUNCTIONS.register(NAME, tiled_attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, sdpa_mask)
    return NAME


def tiled_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **settings: Any,
) -> tuple[torch.Tensor, None]:
    """Attention as transformers calls it; without dropout torch's fused kernel is faster."""
    from tightfit.compat import repeat_kv, sdpa_attention_forward

    causal = settings.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    is_causal = bool(causal) and attention_mask is None and query.shape[2] > 1
    has_kv_cache = is_causal and query.shape[2] != key.shape[2]  # some keys come from earlier calls
    if not dropout or query.dtype not in _DTYPES or has_kv_cache:
        inputs = (module, query, key, value, attention_mask)
        return sdpa_attention_forward(*inputs, dropout=dropout, scaling=scaling, **settings)
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = _Attention.apply(query, key, value, _additive_mask(attention_mask), is_causal, scale, dropout)
    return out.transpose(1, 2), None


def _additive_mask(mask: torch.Tensor | None) -> torch.Tensor | None:
    """The mask as a term added to the scores: 0 where a token is visible."""
    if mask is None or mask.is_floating_point():
        return mask
    lowest = torch.finfo(torch.float32).min
    return torch.zeros_like(mask, dtype=torch.float32).masked_fill_(~mask, lowest)


@dataclass
class _Tiles:
    """Iterates over the attention probabilities of a few rows at a time."""

    query: torch.Tensor
    key: torch.Tensor
    mask: torch.Tensor | None
    is_causal: bool
    """Whether later tokens are hidden although there is no mask."""
    scale: float
    dropout_p: float
    seed: int | None

    def __iter__(self) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
        """The rows, their probabilities and their dropout mask; the next tile overwrites both tensors."""
        rows, heads, length, _ = self.query.shape
        key_length, random = self.key.shape[2], RandomBits(self.seed)
        rows_per_tile = min(rows, max(1, _TILE // (heads * length * key_length)))
        size, products = (rows_per_tile * heads, length, key_length), _Products(self.query)
        scores, probs = (pooled_empty(size, self.query, torch.float32) for _ in range(2))
        mask = torch.empty(scores.shape, dtype=MASK_DTYPE)
        causal_mask = torch.ones(length, key_length, dtype=torch.bool).triu_(1) if self.is_causal else None
        for start in representative(range(0, rows, rows_per_tile), rows / rows_per_tile, like=self.query):
            tile = slice(start, min(start + rows_per_tile, rows))
            count = (tile.stop - start) * heads
            self._score(products, tile, scores[:count], causal_mask)
            torch.softmax(scores[:count], dim=-1, out=probs[:count])
            yield tile, probs[:count], scores[:count].copy_(random.fill_dropout_mask(mask[:count], self.dropout_p))

    def _score(self, products: _Products, tile: slice, out: torch.Tensor, causal_mask: torch.Tensor | None) -> None:
        products.square(_flat(self.query[tile]), _flat(self.key[tile]).transpose(1, 2), out).mul_(self.scale)
        if self.mask is not None:
            mask = self.mask if self.mask.shape[0] == 1 else self.mask[tile]
            out.view(tile.stop - tile.start, -1, *out.shape[1:]).add_(mask)
        if causal_mask is not None:
            out.masked_fill_(causal_mask, torch.finfo(out.dtype).min)


class _Products:
    """Matrix products in the number format of queries and keys, with buffers that all tiles share.

    Matrices of tokens x tokens are in fp32 outside of them.
    """

    def __init__(self, like: torch.Tensor) -> None:
        self._like = like
        self._square: torch.Tensor | None = None
        self._result: torch.Tensor | None = None

    def square(self, left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Write left @ right, a matrix of tokens x tokens for each head, into `out`."""
        if out.dtype is self._like.dtype:
            return torch.bmm(left, right, out=out)
        return out.copy_(torch.bmm(left, right, out=self._narrow(out)))

    def operand(self, square: torch.Tensor) -> torch.Tensor:
        """A matrix of tokens x tokens in the format of the products; the next call overwrites it."""
        return square if square.dtype is self._like.dtype else self._narrow(square).copy_(square)

    def into(self, left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
        """Write left @ right into some rows of `out`."""
        if self._result is None:
            self._result = pooled_empty((len(left), left.shape[1], right.shape[2]), self._like)
        out.copy_(torch.bmm(left, right, out=self._result[: len(left)]).view(out.shape))

    def _narrow(self, square: torch.Tensor) -> torch.Tensor:
        if self._square is None:
            self._square = pooled_empty(square.shape, self._like)
        return self._square[: len(square)]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        is_causal: bool,
        scale: float,
        dropout_p: float,
    ) -> torch.Tensor:
        ctx.save_for_backward(query, key, value, mask)
        ctx.settings = is_causal, scale, dropout_p, draw_seed(query)
        out, products = _empty_like(query, value.shape[-1]), _Products(query)
        for tile, probs, dropout_mask in _Tiles(query, key, mask, *ctx.settings):
            products.into(products.operand(probs.mul_(dropout_mask)), _flat(value[tile]), out[tile])
        return out.mul_(1 / (1 - dropout_p))

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[no-untyped-def]
        query, key, value, mask = ctx.saved_tensors
        _, scale, dropout_p, _ = ctx.settings
        grad_query, grad_key, grad_value = (_empty_like(t, t.shape[-1]) for t in (query, key, value))
        products, grad_scores = _Products(query), None
        for tile, probs, dropout_mask in _Tiles(query, key, mask, *ctx.settings):
            grad_out = _flat(gradient[tile])
            grad_scores = pooled_empty(probs.shape, probs) if grad_scores is None else grad_scores[: len(probs)]
            dropped = products.operand(torch.mul(probs, dropout_mask, out=grad_scores))
            products.into(dropped.transpose(1, 2), grad_out, grad_value[tile])
            products.square(grad_out, _flat(value[tile]).transpose(1, 2), grad_scores).mul_(dropout_mask)
            softmax_backward_into(grad_scores, probs, -1, torch.float32, grad_input=probs)
            grad_probs = products.operand(probs)
            products.into(grad_probs, _flat(key[tile]), grad_query[tile])
            products.into(grad_probs.transpose(1, 2), _flat(query[tile]), grad_key[tile])
        rescale = 1 / (1 - dropout_p)
        return grad_query.mul_(scale * rescale), grad_key.mul_(scale * rescale), grad_value.mul_(rescale), *[None] * 4


def _flat(tile: torch.Tensor) -> torch.Tensor:
    """Merge rows and heads into one dimension."""
    return tile[0] if tile.shape[0] == 1 else tile.reshape(-1, *tile.shape[2:])


def _empty_like(heads: torch.Tensor, size: int) -> torch.Tensor:
    """An uninitialized tensor in the memory layout of the surrounding layers: rows, tokens, heads."""
    rows, count, length, _ = heads.shape
    return pooled_empty((rows, length, count, size), heads).transpose(1, 2)
