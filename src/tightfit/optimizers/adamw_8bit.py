"""AdamW with both moments in 8 bits: bitsandbytes' arithmetic, one tile of the parameter at a time.

Every 256 elements of a moment share one scale, and each element is the nearest of 256 values between that scale and
zero, spaced closely near zero. On a GPU one kernel does it all. On a CPU bitsandbytes first converts both moments to
fp32, with three more tensors of their size; in tiles this takes a few megabytes, whatever the parameter's size.
Vectors and other small tensors stay in fp32, as in bitsandbytes: they take next to no memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tightfit.compat import adam_8bit_update, adam_32bit_update, create_dynamic_map
from tightfit.ops.fake import is_fake, real_tensors, representative
from tightfit.optimizers.base import PerParameterAdamW, tile_elements

_SMALL = 4096  # elements: smaller tensors stay in fp32
_BLOCK = 256  # elements that share a scale
_TILE = 1 << 20  # elements: with fewer, bitsandbytes starts its threads too often
_GPU_TILE = 1 << 62  # on GPUs the whole parameter


class AdamW8(PerParameterAdamW):
    """AdamW with moments in 8 bits."""

    def __init__(self, groups: Any, lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(groups, lr, weight_decay)
        with real_tensors():
            self._maps = [create_dynamic_map(signed=signed) for signed in (True, False)]

    def update(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state.update(_new_state(parameter))
        state["step"] += 1
        settings: Any = {name: group[name] for name in ("betas", "eps", "lr", "weight_decay")} | {"step": state["step"]}
        # bitsandbytes' kernels do not count in-place changes; recovery needs that count after a failed step.
        torch.autograd.graph.increment_version(parameter)
        if state["state1"].dtype is torch.float32:
            adam_32bit_update(gradient, parameter, (state["state1"], state["state2"]), **settings)
            return
        codebooks = self._codebooks(parameter)
        for weights, grad, first, second, first_scale, second_scale in _tiles(parameter, gradient, state):
            adam_8bit_update(grad, weights, (first, second), (first_scale, second_scale), codebooks, **settings)

    def _codebooks(self, parameter: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The values that a byte can represent, signed and unsigned."""
        if is_fake(parameter):
            return torch.empty(256), torch.empty(256)
        signed, unsigned = self._maps = [values.to(parameter.device) for values in self._maps]
        return signed, unsigned


def _new_state(parameter: torch.Tensor) -> dict[str, Any]:
    if parameter.numel() < _SMALL:
        moments = {name: torch.zeros_like(parameter, dtype=torch.float32) for name in ("state1", "state2")}
        return {"step": 0, **moments}
    blocks = -(-parameter.numel() // _BLOCK)
    moments = {name: torch.zeros_like(parameter, dtype=torch.uint8) for name in ("state1", "state2")}
    scales = {name: parameter.new_zeros(blocks, dtype=torch.float32) for name in ("absmax1", "absmax2")}
    return {"step": 0, **moments, **scales}


def _tiles(
    parameter: torch.Tensor, gradient: torch.Tensor, state: dict[str, Any]
) -> Iterator[tuple[torch.Tensor, ...]]:
    size = min(parameter.numel(), tile_elements(parameter, _TILE, _GPU_TILE))
    whole = parameter.view(-1), gradient.reshape(-1), state["state1"].view(-1), state["state2"].view(-1)
    rows = [row.split(size) for row in whole]
    rows += [state[name].split(-(-size // _BLOCK)) for name in ("absmax1", "absmax2")]
    yield from representative(zip(*rows, strict=True), parameter.numel() / size, like=parameter)
