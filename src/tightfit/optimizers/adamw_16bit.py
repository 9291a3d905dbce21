"""AdamW with both moments in bf16: 2 bytes each.

bf16 has the range of fp32 but only two to three significant decimal digits. That is enough for the first moment, which
changes by a tenth per step (1 - beta1). The second changes by a thousandth (1 - beta2), less than bf16 resolves:
rounded to nearest, such changes would be lost. So it is rounded stochastically, up or down in proportion to the digits
that are lost, and is right on average.
The arithmetic itself is fp32, on tiles in the processor's cache.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from tightfit.ops.dropout import RandomBits, draw_seed, stochastic_round_bf16
from tightfit.ops.fake import representative
from tightfit.optimizers.base import PerParameterAdamW, tile_elements

_TILE = 1 << 18  # elements that fit the cache beside their moments
_MOMENTS = ("exp_avg", "exp_avg_sq")


class AdamW16(PerParameterAdamW):
    """AdamW with moments in bf16."""

    def update(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        state, lr, betas = self.state[parameter], group["lr"], group["betas"]
        if not state:
            state.update({name: torch.zeros_like(parameter, dtype=torch.bfloat16) for name in _MOMENTS}, step=0)
        state["step"] += 1
        correction, correction_sq = (1 - beta ** state["step"] for beta in betas)
        random = RandomBits(draw_seed(parameter))
        rows = (parameter, gradient, state["exp_avg"], state["exp_avg_sq"])
        size = min(parameter.numel(), tile_elements(parameter, _TILE))
        buffers = [torch.empty(size, dtype=torch.float32, device=parameter.device) for _ in range(3)]
        tiles = zip(*(row.reshape(-1).split(size) for row in rows), strict=True)
        for weights, grad, exp_avg, exp_avg_sq in representative(tiles, parameter.numel() / size, like=parameter):
            first, second, scratch = (buffer[: len(weights)] for buffer in buffers)
            first.copy_(exp_avg).lerp_(grad, 1 - betas[0])
            second.copy_(exp_avg_sq).mul_(betas[1]).addcmul_(grad, grad, value=1 - betas[1])
            denominator = torch.sqrt(second, out=scratch).div_(math.sqrt(correction_sq)).add_(group["eps"])
            weights.mul_(1 - lr * group["weight_decay"]).addcdiv_(first, denominator, value=-lr / correction)
            exp_avg.copy_(first)
            exp_avg_sq.copy_(stochastic_round_bf16(second, random))
