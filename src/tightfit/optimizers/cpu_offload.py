"""On host: the twins that an optimizer steps are in host memory, while the parameters are on a card.

The machine's processor takes the step, and what the optimizer remembers stays with it. A run may go on without this,
or begin without it: what is saved is the same.
"""

from __future__ import annotations

import torch

from tightfit.ops.fake import counts_as, on_host
from tightfit.ops.offload import HOST_WORK, TRANSFER, to_host
from tightfit.optimizers.base import ShadowOptimizer


class CPUOffload(ShadowOptimizer):
    """Any optimizer, beside the card."""

    def twin_of(self, parameter: torch.Tensor) -> torch.nn.Parameter:
        return torch.nn.Parameter(torch.empty(0, dtype=parameter.dtype, device="cpu"))

    def lend(self, tensor: torch.Tensor) -> torch.Tensor:
        return to_host(tensor, wait=True)

    def step_inner(self) -> None:
        with on_host(), counts_as(sort=HOST_WORK):
            self.inner.step()

    def take_back(self, twin: torch.Tensor, parameter: torch.Tensor) -> None:
        with counts_as(sort=TRANSFER):
            parameter.copy_(twin, non_blocking=True)
