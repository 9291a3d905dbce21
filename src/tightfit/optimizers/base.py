"""Base classes: optimizers that update one parameter at a time, and optimizers that update a copy of each.

A ShadowOptimizer runs an inner optimizer on temporary copies of the parameters, in another dtype or on another device.
A copy is allocated only while its parameter is updated, so copies cannot become stale and only the optimizer state
stays allocated. The state is saved in the format of the inner optimizer.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch

from tightfit.ops.fake import device_kind

_GPU_TILE = 1 << 24  # each tile is several kernel launches


def tile_elements(parameter: torch.Tensor, on_cpu: int, on_gpu: int = _GPU_TILE) -> int:
    """The most elements to update at once: on a CPU those that stay in its cache, on a GPU more."""
    return on_cpu if device_kind(parameter) == "cpu" else on_gpu


class PerParameter(torch.optim.Optimizer):
    """An optimizer that updates each parameter on its own, with a learning rate and weight decay per group."""

    def __init__(self, groups: Any, lr: float, weight_decay: float = 0.0, **settings: Any) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay, **settings})

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every parameter that has a gradient."""
        loss = closure() if closure is not None else None
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self.update(parameter, parameter.grad, group)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load tensors in the dtype they were saved in; torch would convert each to the dtype of its parameter."""
        super().load_state_dict({**state_dict, "state": {}})
        indices, parameters = (_members(groups) for groups in (state_dict["param_groups"], self.param_groups))
        for index, parameter in zip(indices, parameters, strict=True):
            if index in state_dict["state"]:
                values = state_dict["state"][index]
                self.state[parameter] = {name: _on(parameter.device, value) for name, value in values.items()}

    @abstractmethod
    def update(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        """Update one parameter in place, with the settings of its group."""


class PerParameterAdamW(PerParameter):
    """AdamW with torch's defaults; the state is the subclass's own."""

    def __init__(self, groups: Any, lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(groups, lr, weight_decay, betas=(0.9, 0.999), eps=1e-8)


def _members(groups: list[dict[str, Any]]) -> list[Any]:
    return [member for group in groups for member in group["params"]]


def _on(device: torch.device, value: Any) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) else value


Build = Callable[[list[dict[str, Any]], float], torch.optim.Optimizer]


class ShadowOptimizer(torch.optim.Optimizer):
    """Updates shadow copies; parameter groups and learning rates are its own, the state is the inner optimizer's."""

    def __init__(self, groups: list[dict[str, Any]], lr: float, build: Build) -> None:
        super().__init__(groups, {"lr": lr})
        shadows = [{**group, "params": [self.make_shadow(p) for p in group["params"]]} for group in self.param_groups]
        self.inner = build(shadows, lr)
        self.state = self.inner.state

    @abstractmethod
    def make_shadow(self, parameter: torch.Tensor) -> torch.nn.Parameter:
        """An empty shadow in the format it will have."""

    @abstractmethod
    def copy_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """A weight or a gradient in the shadow's format, on its device."""

    @abstractmethod
    def copy_out(self, shadow: torch.Tensor, parameter: torch.Tensor) -> None:
        """Write an updated weight back to its parameter."""

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every parameter that has a gradient."""
        loss = closure() if closure is not None else None
        _sync_groups(self.param_groups, self.inner.param_groups)
        with torch.no_grad():
            for group, inner in zip(self.param_groups, self.inner.param_groups, strict=True):
                for parameter, shadow in zip(group["params"], inner["params"], strict=True):
                    if parameter.grad is not None:
                        self._step_one(parameter, shadow)
        return loss

    def _step_one(self, parameter: torch.Tensor, shadow: torch.Tensor) -> None:
        """Update one shadow: it is the only one with a gradient, so the inner optimizer skips the others."""
        assert parameter.grad is not None
        empty = shadow.data
        shadow.data, shadow.grad = self.copy_in(parameter.data), self.copy_in(parameter.grad)
        try:
            self.step_shadow()
            self.copy_out(shadow.data, parameter)
        finally:
            shadow.grad, shadow.data = None, empty

    def step_shadow(self) -> None:
        """Run the inner optimizer on the shadow that has a gradient."""
        self.inner.step()

    def state_dict(self) -> dict[str, Any]:
        """The inner optimizer's state."""
        _sync_groups(self.param_groups, self.inner.param_groups)
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the inner optimizer's state."""
        self.inner.load_state_dict(state_dict)
        self.state = self.inner.state
        _sync_groups(self.inner.param_groups, self.param_groups)


def _sync_groups(groups: list[dict[str, Any]], others: list[dict[str, Any]]) -> None:
    """Copy learning rates and other settings: a scheduler sets them on one optimizer, the other uses them."""
    for group, other in zip(groups, others, strict=True):
        other.update({name: value for name, value in group.items() if name != "params"})
