"""Stochastic rounding: bf16 parameters, updated in fp32 and rounded up or down at random.

bf16 has two to three decimal digits, and a fine-tuning step changes the fifth digit of a weight: rounded to nearest,
no weight would ever change. Rounded up or down in proportion to the digits that are lost, a weight moves as it should
on average.
"""

from __future__ import annotations

import torch

from tightfit.ops.dropout import RandomBits, draw_seed, stochastic_round_bf16
from tightfit.ops.fake import representative
from tightfit.optimizers.base import ShadowOptimizer

_TILE = 1 << 18  # elements that are rounded together, in the cache


class StochasticRounding(ShadowOptimizer):
    """Any optimizer, for bf16 parameters; fp32 parameters are updated in place."""

    def make_shadow(self, parameter: torch.Tensor) -> torch.nn.Parameter:
        return torch.nn.Parameter(torch.empty(0, dtype=torch.float32, device=parameter.device))

    def copy_in(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.float()

    def copy_out(self, shadow: torch.Tensor, parameter: torch.Tensor) -> None:
        torch.autograd.graph.increment_version(parameter)  # shows recovery whether a failed step changed the weight
        if parameter.dtype is torch.float32:
            return  # updated in place
        random, size = RandomBits(draw_seed(parameter)), min(parameter.numel(), _TILE)
        tiles = zip(parameter.data.view(-1).split(size), shadow.view(-1).split(size), strict=True)
        for narrow, wide in representative(tiles, parameter.numel() / size, like=parameter):
            narrow.copy_(stochastic_round_bf16(wide, random))
