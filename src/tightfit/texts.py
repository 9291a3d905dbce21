"""Texts: how long those of a training are, and what padding and cutting make of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tightfit.beginning import Texts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tightfit.data.tokens import Tokens
    from tightfit.rehearsal.lengths import Lengths
    from tightfit.rehearsal.sizes import Extent
    from tightfit.strategies.parts import Parts

_BARS = 32


def texts_of(tokens: Tokens, lengths: Lengths, parts: Parts) -> Texts:
    """Of the training rows as they are cut; padding as the recipe has it, and as whole batches would."""
    width = -(-parts.max_length // _BARS)
    bars = np.bincount((np.array(tokens.lengths) - 1) // width, minlength=-(-parts.max_length // width))
    return Texts(
        limit=parts.max_length,
        width=width,
        rows=bars.tolist(),
        computed_per_token=_by_recipe(lengths, parts),
        plain_per_token=_by_chance(lengths, parts.max_length),
        cut_rows=tokens.cut,
        tokens=sum(tokens.lengths),
        cut_tokens=tokens.lost,
    )


def _by_recipe(lengths: Lengths, parts: Parts) -> float:
    if parts.trunk:
        return _ratio(lengths.trunk_batches(parts), sum(min(n, parts.max_length) for n in lengths.train))
    dealt = lengths.dealt_to(parts).some()
    if parts.layer_rows:
        return dealt.tokens(parts) / int(dealt.batches.sum())
    return _ratio(dealt.slices(parts), int(dealt.batches.sum()))


def _by_chance(lengths: Lengths, longest: int) -> float:
    batches = np.minimum(lengths.some().batches, longest)
    return _ratio([(int((b > 0).sum()), int(b.max())) for b in batches], int(batches.sum()))


def _ratio(computed: Iterable[Extent], tokens: int) -> float:
    return round(sum(rows * length for rows, length in computed) / tokens, 4)
