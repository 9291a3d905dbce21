"""Attention a few rows at a time, with dropout, for CPUs.

torch's fused attention knows no dropout on a CPU, so a training with it falls back to whole matrices of tokens x
tokens: six or seven of them for every head of every row, through main memory. Here a tile of them is made, used and
overwritten in the cache, and the backward pass makes it again from queries and keys. Nothing of tokens x tokens is
kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tightfit.compat import softmax_backward_into
from tightfit.ops.buffer_pool import empty
from tightfit.ops.dropout import MASK, RandomBits, draw_seed
from tightfit.ops.fake import each

NAME = "tightfit"
_TILE = 1 << 18  # numbers of tokens x tokens that are worked on at once


def register() -> str:
    """Make the attention known to transformers, with masks as its fused kind gets them."""
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
    """As transformers calls it. Without dropout, or in half precision, torch's fused kernel is the better one."""
    from tightfit.compat import repeat_kv, sdpa_attention_forward

    causal = settings.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    is_causal = bool(causal) and attention_mask is None and query.shape[2] > 1
    in_cache = is_causal and query.shape[2] != key.shape[2]  # some keys are of earlier calls
    if not dropout or query.dtype is not torch.float32 or in_cache:
        given = (module, query, key, value, attention_mask)
        return sdpa_attention_forward(*given, dropout=dropout, scaling=scaling, **settings)
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = _Attention.apply(query, key, value, _additive_mask(attention_mask), is_causal, scale, dropout)
    return out.transpose(1, 2), None


def _additive_mask(mask: torch.Tensor | None) -> torch.Tensor | None:
    """What is added to the scores: nothing where a token may be looked at."""
    if mask is None or mask.is_floating_point():
        return mask
    lowest = torch.finfo(torch.float32).min
    return torch.zeros_like(mask, dtype=torch.float32).masked_fill_(~mask, lowest)


@dataclass
class _Tiles:
    """Probabilities of a few rows at a time."""

    query: torch.Tensor
    key: torch.Tensor
    mask: torch.Tensor | None
    is_causal: bool
    """Whether no token sees a later one, where no mask says so."""
    scale: float
    dropped: float
    seed: int | None

    def __iter__(self) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
        """Rows, their probabilities, and ones for those that dropout keeps. Both are overwritten by the next."""
        rows, heads, length, _ = self.query.shape
        others, chance = self.key.shape[2], RandomBits(self.seed)
        at_once = min(rows, max(1, _TILE // (heads * length * others)))
        scores, shares = (empty((at_once * heads, length, others), self.query) for _ in range(2))
        mask = torch.empty(scores.shape, dtype=MASK)
        later = torch.ones(length, others, dtype=torch.bool).triu_(1) if self.is_causal else None
        for start in each(range(0, rows, at_once), rows / at_once, like=self.query):
            here = slice(start, min(start + at_once, rows))
            count = (here.stop - start) * heads
            self._score(here, scores[:count], later)
            torch.softmax(scores[:count], dim=-1, out=shares[:count])
            yield here, shares[:count], scores[:count].copy_(chance.keep(mask[:count], self.dropped))

    def _score(self, here: slice, room: torch.Tensor, later: torch.Tensor | None) -> None:
        torch.bmm(_flat(self.query[here]), _flat(self.key[here]).transpose(1, 2), out=room).mul_(self.scale)
        if self.mask is not None:
            mask = self.mask if self.mask.shape[0] == 1 else self.mask[here]
            room.view(here.stop - here.start, -1, *room.shape[1:]).add_(mask)
        if later is not None:
            room.masked_fill_(later, torch.finfo(room.dtype).min)


class _Room:
    """A tensor of rows and heads that products are made in, time and again."""

    def __init__(self, like: torch.Tensor) -> None:
        self._like = like
        self._room: torch.Tensor | None = None

    def product(self, one: torch.Tensor, other: torch.Tensor, out: torch.Tensor) -> None:
        """Write one @ other into some rows of `out`."""
        if self._room is None:
            self._room = empty((len(one), one.shape[1], other.shape[2]), self._like)
        out.copy_(torch.bmm(one, other, out=self._room[: len(one)]).view(out.shape))


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
        dropped: float,
    ) -> torch.Tensor:
        ctx.save_for_backward(query, key, value, mask)
        ctx.settings = is_causal, scale, dropped, draw_seed(query)
        out, room = _empty_like(query, value.shape[-1]), _Room(query)
        for here, shares, keep in _Tiles(query, key, mask, *ctx.settings):
            room.product(shares.mul_(keep), _flat(value[here]), out[here])
        return out.mul_(1 / (1 - dropped))

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[no-untyped-def]
        query, key, value, mask = ctx.saved_tensors
        _, scale, dropped, _ = ctx.settings
        to_query, to_key, to_value = (_empty_like(t, t.shape[-1]) for t in (query, key, value))
        room, slopes = _Room(query), None
        for here, shares, keep in _Tiles(query, key, mask, *ctx.settings):
            arriving = _flat(gradient[here])
            slopes = empty(shares.shape, shares) if slopes is None else slopes[: len(shares)]
            room.product(torch.mul(shares, keep, out=slopes).transpose(1, 2), arriving, to_value[here])
            torch.bmm(arriving, _flat(value[here]).transpose(1, 2), out=slopes).mul_(keep)
            softmax_backward_into(slopes, shares, -1, torch.float32, grad_input=shares)
            room.product(shares, _flat(key[here]), to_query[here])
            room.product(shares.transpose(1, 2), _flat(query[here]), to_key[here])
        undropped = 1 / (1 - dropped)
        return to_query.mul_(scale * undropped), to_key.mul_(scale * undropped), to_value.mul_(undropped), *[None] * 4


def _flat(tile: torch.Tensor) -> torch.Tensor:
    """Rows and heads in one dimension."""
    return tile[0] if tile.shape[0] == 1 else tile.reshape(-1, *tile.shape[2:])


def _empty_like(heads: torch.Tensor, size: int) -> torch.Tensor:
    """In the order of memory that the layers around have: rows, tokens, heads."""
    rows, count, length, _ = heads.shape
    return empty((rows, length, count, size), heads).transpose(1, 2)
