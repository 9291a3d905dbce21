"""By chance: parameters in 16 bits, stepped in 32 and rounded up or down by chance.

bf16 writes three digits. A step of fine-tuning changes a weight in its fifth: rounded to the nearest, nothing would
ever change. Rounded up or down, as likely as the lost digits say, a weight moves as it should in the mean.
"""

from __future__ import annotations

import torch

from tightfit.ops.dropout import RandomBits, draw_seed, stochastic_round_bf16
from tightfit.ops.fake import each
from tightfit.optimizers.base import ShadowOptimizer

_PIECE = 1 << 18  # numbers that are rounded at once


class StochasticRounding(ShadowOptimizer):
    """Any optimizer, for parameters in bf16; those in 32 bits are stepped as they are."""

    def twin_of(self, parameter: torch.Tensor) -> torch.nn.Parameter:
        return torch.nn.Parameter(torch.empty(0, dtype=torch.float32, device=parameter.device))

    def lend(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.float()

    def take_back(self, twin: torch.Tensor, parameter: torch.Tensor) -> None:
        torch.autograd.graph.increment_version(parameter)  # a step that failed is judged by what was counted
        if parameter.dtype is torch.float32:
            return  # was stepped in place
        chance, size = RandomBits(draw_seed(parameter)), min(parameter.numel(), _PIECE)
        pieces = zip(parameter.data.view(-1).split(size), twin.view(-1).split(size), strict=True)
        for narrow, wide in each(pieces, parameter.numel() / size, like=parameter):
            narrow.copy_(stochastic_round_bf16(wide, chance))
