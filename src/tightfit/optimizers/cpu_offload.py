"""CPU offload: the optimizer state is in host memory and the step runs on the CPU; the parameters stay on the GPU.

The saved state is the inner optimizer's, so a run can be resumed with or without the offload.
"""

from __future__ import annotations

import torch

from tightfit.ops.fake import counts_as, on_host
from tightfit.ops.offload import HOST_WORK, TRANSFER, to_host
from tightfit.optimizers.base import ShadowOptimizer


class CPUOffload(ShadowOptimizer):
    """Runs the step of any optimizer on the CPU, for parameters on a GPU."""

    def make_shadow(self, parameter: torch.Tensor) -> torch.nn.Parameter:
        return torch.nn.Parameter(torch.empty(0, dtype=parameter.dtype, device="cpu"))

    def copy_in(self, tensor: torch.Tensor) -> torch.Tensor:
        return to_host(tensor, wait=True)

    def step_shadow(self) -> None:
        with on_host(), counts_as(kind=HOST_WORK):
            self.inner.step()

    def copy_out(self, shadow: torch.Tensor, parameter: torch.Tensor) -> None:
        with counts_as(kind=TRANSFER):
            parameter.copy_(shadow, non_blocking=True)
