"""AdamW whose two moments take two bytes each.

Sixteen bits (bf16) hold the same range as thirty-two with three digits fewer. That is enough for the first moment, of
which a tenth is new at every step. Of the second only a thousandth is new, less than the last digit: rounded to the
nearest it would never change again. So it is rounded up or down by chance, as likely as its lost digits say, and is
right in the mean. The arithmetic itself is done in 32 bits, a piece at a time in the processor's cache.
"""

from __future__ import annotations

import math

import torch

from tightfit.ops.dropout import RandomBits, draw_seed, stochastic_round_bf16
from tightfit.ops.fake import each
from tightfit.optimizers.base import PerParameter

_PIECE = {"cpu": 1 << 18}  # numbers that a cache holds beside their moments
_WHOLE = 1 << 24  # on cards, where each piece is several launches
_MOMENTS = ("exp_avg", "exp_avg_sq")
_BETAS, _EPS = (0.9, 0.999), 1e-8  # those of torch.optim.AdamW


class AdamW16(PerParameter):
    """AdamW with moments in bf16."""

    def update(self, parameter: torch.Tensor, gradient: torch.Tensor, lr: float, weight_decay: float) -> None:
        state = self.state[parameter]
        if not state:
            state.update({name: torch.zeros_like(parameter, dtype=torch.bfloat16) for name in _MOMENTS}, step=0)
        state["step"] += 1
        correction, correction_sq = (1 - beta ** state["step"] for beta in _BETAS)
        chance = RandomBits(draw_seed(parameter))
        rows = (parameter, gradient, state["exp_avg"], state["exp_avg_sq"])
        size = min(parameter.numel(), _PIECE.get(parameter.device.type, _WHOLE))
        rooms = [torch.empty(size, dtype=torch.float32, device=parameter.device) for _ in range(3)]
        pieces = zip(*(row.reshape(-1).split(size) for row in rows), strict=True)
        for weights, slopes, mean, square in each(pieces, parameter.numel() / size, like=parameter):
            first, second, room = (whole[: len(weights)] for whole in rooms)
            first.copy_(mean).lerp_(slopes, 1 - _BETAS[0])
            second.copy_(square).mul_(_BETAS[1]).addcmul_(slopes, slopes, value=1 - _BETAS[1])
            spread = torch.sqrt(second, out=room).div_(math.sqrt(correction_sq)).add_(_EPS)
            weights.mul_(1 - lr * weight_decay).addcdiv_(first, spread, value=-lr / correction)
            mean.copy_(first)
            square.copy_(stochastic_round_bf16(second, chance))
