"""AdamW whose two moments take a byte each: bitsandbytes' arithmetic, a piece of the parameter at a time.

Every 256 numbers of a moment share one scale, and each is the nearest of 256 values between that scale and zero,
close together near zero. On a card one kernel does it all. On a CPU bitsandbytes writes both moments out in 32 bits
first, with three more of their size on the way; in pieces that room is a few megabytes, whatever the parameter.
Vectors and other small tensors keep 32 bits, as bitsandbytes has it: they weigh nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tightfit.compat import adam_8bit_update, adam_32bit_update, create_dynamic_map
from tightfit.ops.fake import each, is_fake, real_tensors
from tightfit.optimizers.base import PerParameter

_SMALL = 4096  # numbers: tensors below it keep 32 bits
_BLOCK = 256  # numbers that share a scale
_PIECE = {"cpu": 1 << 20}  # numbers: for fewer the threads of bitsandbytes start too often
_WHOLE = 1 << 62  # on cards
_BETAS, _EPS = (0.9, 0.999), 1e-8  # those of torch.optim.AdamW


class AdamW8(PerParameter):
    """AdamW with moments in 8 bits."""

    def __init__(self, groups: Any, lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(groups, lr, weight_decay)
        with real_tensors():
            self._values = [create_dynamic_map(signed=signed) for signed in (True, False)]

    def update(self, parameter: torch.Tensor, gradient: torch.Tensor, lr: float, weight_decay: float) -> None:
        state = self.state[parameter]
        if not state:
            state.update(_new_state(parameter))
        state["step"] += 1
        settings: Any = {"betas": _BETAS, "eps": _EPS, "step": state["step"], "lr": lr, "weight_decay": weight_decay}
        # Kernels of other libraries do not count what they change, and a step that failed is judged by that count.
        torch.autograd.graph.increment_version(parameter)
        if state["state1"].dtype is torch.float32:
            adam_32bit_update(gradient, parameter, (state["state1"], state["state2"]), **settings)
            return
        values = self._values_near(parameter)
        for weights, slopes, first, second, first_scale, second_scale in _pieces(parameter, gradient, state):
            adam_8bit_update(slopes, weights, (first, second), (first_scale, second_scale), values, **settings)

    def _values_near(self, parameter: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What a byte can stand for, with a sign and without."""
        if is_fake(parameter):
            return torch.empty(256), torch.empty(256)
        signed, unsigned = self._values = [values.to(parameter.device) for values in self._values]
        return signed, unsigned


def _new_state(parameter: torch.Tensor) -> dict[str, Any]:
    if parameter.numel() < _SMALL:
        moments = {name: torch.zeros_like(parameter, dtype=torch.float32) for name in ("state1", "state2")}
        return {"step": 0, **moments}
    blocks = -(-parameter.numel() // _BLOCK)
    moments = {name: torch.zeros_like(parameter, dtype=torch.uint8) for name in ("state1", "state2")}
    scales = {name: parameter.new_zeros(blocks, dtype=torch.float32) for name in ("absmax1", "absmax2")}
    return {"step": 0, **moments, **scales}


def _pieces(
    parameter: torch.Tensor, gradient: torch.Tensor, state: dict[str, Any]
) -> Iterator[tuple[torch.Tensor, ...]]:
    size = min(parameter.numel(), _PIECE.get(parameter.device.type, _WHOLE))
    whole = parameter.view(-1), gradient.reshape(-1), state["state1"].view(-1), state["state2"].view(-1)
    rows = [row.split(size) for row in whole]
    rows += [state[name].split(-(-size // _BLOCK)) for name in ("absmax1", "absmax2")]
    yield from each(zip(*rows, strict=True), parameter.numel() / size, like=parameter)
