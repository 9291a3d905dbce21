"""Chance: random bits, and which numbers dropout keeps, drawn several times as fast as torch draws on a CPU.

torch draws a double for every number, one after the other on one core: 8 ns each. Sixteen random bits decide the
same to 1 in 65,536 and take a sixth of the time. The bits follow from one number of torch's own generator, so a seed
gives the same run again, and a checkpointed layer meets the same choice in its second run.
"""

from __future__ import annotations

import numpy as np
import torch

from tightfit.ops.buffer_pool import empty
from tightfit.ops.fake import counts_as, each, is_fake

MASK = torch.uint8  # of zeros and ones: torch turns them into numbers ten times as fast as truths
BITS = "random bits"  # the sort of work, for those who count it
_AT_ONCE = 1 << 13  # numbers: their bits stay in the cache, and the C library takes room for them from its heap
_VALUES_AT_ONCE = 1 << 17  # and so do values beside their mask


def draw_seed(like: torch.Tensor) -> int | None:
    """A seed from torch's generator; none where tensors hold no data."""
    return None if is_fake(like) else int(torch.randint(1 << 62, ()).item())


class RandomBits:
    """Random bits in the order they are asked for."""

    def __init__(self, seed: int | None) -> None:
        self._bits = None if seed is None else np.random.SFC64(seed)

    def keep(self, mask: torch.Tensor, dropped: float) -> torch.Tensor:
        """Fill a mask in one piece: 0 for the share that is dropped, else 1."""
        if self._bits is None:
            with counts_as(sort=BITS):
                return mask.bernoulli_(1 - dropped)
        row, lowest = mask.view(-1).view(torch.bool).numpy(), np.int16(round(dropped * 65536) - 32768)
        for start in range(0, len(row), _AT_ONCE):
            room = row[start : start + _AT_ONCE]
            bits = self._bits.random_raw(-(-len(room) // 4)).view(np.int16)
            np.greater_equal(bits[: len(room)], lowest, out=room)
        return mask

    def bits(self, like: torch.Tensor) -> torch.Tensor:
        """Sixteen random bits for every number."""
        if self._bits is None or like.device.type != "cpu":
            return torch.randint_like(like, 1 << 16)
        drawn = self._bits.random_raw(-(-len(like) // 2)).view(np.int32)[: len(like)]
        return torch.from_numpy(drawn).bitwise_and_(0xFFFF)


def stochastic_round_bf16(values: torch.Tensor, chance: RandomBits) -> torch.Tensor:
    """A row of values with the digits that bf16 has, up or down as likely as the others say. Overwrites them."""
    digits = values.view(torch.int32)
    digits.add_(chance.bits(digits)).bitwise_and_(-(1 << 16))
    return values


def dropout(values: torch.Tensor, dropped: float) -> torch.Tensor:
    """Some values set to zero, the others made larger so that the mean stays."""
    kept: torch.Tensor = _Dropout.apply(values, dropped)
    return kept


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values: torch.Tensor, dropped: float) -> torch.Tensor:  # type: ignore[no-untyped-def]
        ctx.settings = draw_seed(values), dropped
        return _kept(values, *ctx.settings)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[no-untyped-def]
        return _kept(gradient, *ctx.settings), None


def _kept(values: torch.Tensor, seed: int | None, dropped: float) -> torch.Tensor:
    """The mask is drawn anew each time: half a percent of a layer's time, a byte a number less to keep.

    And nothing kept means that a second run of a layer need not come as far as its last dropout. The product is four
    times as fast where all is in the cache; torch would make a copy of the mask in numbers if it were left to it.
    """
    kept, scale = empty(values.shape, values), 1 / (1 - dropped)
    mask, chance = torch.empty(min(values.numel(), _VALUES_AT_ONCE), dtype=MASK), RandomBits(seed)
    rows = [tensor.reshape(-1).split(_VALUES_AT_ONCE) for tensor in (values, kept)]
    times = max(1.0, values.numel() / _VALUES_AT_ONCE)
    for numbers, room in each(zip(*rows, strict=True), times, like=values):
        room.copy_(chance.keep(mask[: len(numbers)], dropped)).mul_(numbers).mul_(scale)
    return kept
