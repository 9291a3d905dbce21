"""One by one: an optimizer that updates each parameter by itself, which is all that ours have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch


class PerParameter(torch.optim.Optimizer):
    """Parameter groups with a learning rate and a weight decay."""

    def __init__(self, groups: Any, lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay})

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every parameter that has a gradient."""
        loss = closure() if closure is not None else None
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self.update(parameter, parameter.grad, group["lr"], group["weight_decay"])
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As it was saved: torch would give every tensor the type of its parameter, and take the room for that."""
        super().load_state_dict({**state_dict, "state": {}})
        numbers, parameters = (_members(groups) for groups in (state_dict["param_groups"], self.param_groups))
        for number, parameter in zip(numbers, parameters, strict=True):
            if number in state_dict["state"]:
                values = state_dict["state"][number]
                self.state[parameter] = {name: _on(parameter.device, value) for name, value in values.items()}

    @abstractmethod
    def update(self, parameter: torch.Tensor, gradient: torch.Tensor, lr: float, weight_decay: float) -> None:
        """Move one parameter."""


def _members(groups: list[dict[str, Any]]) -> list[Any]:
    return [member for group in groups for member in group["params"]]


def _on(device: torch.device, value: Any) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) else value


# Twins: any optimizer, stepping copies of the parameters in their place, one parameter at a time.
#
# Each parameter has a twin, which the optimizer knows in its stead. A twin is empty but while it is stepped: then it
# holds the weight and its gradient, wherever and in whatever format it suits. So nothing can grow stale, and only what
# the optimizer remembers stays. It is saved as the optimizer itself would save it.


Build = Callable[[list[dict[str, Any]], float], torch.optim.Optimizer]


class ShadowOptimizer(torch.optim.Optimizer):
    """Its groups and learning rates are the trainer's to see, its state is the inner optimizer's."""

    def __init__(self, groups: list[dict[str, Any]], lr: float, build: Build) -> None:
        super().__init__(groups, {"lr": lr})
        twins = [{**group, "params": [self.twin_of(p) for p in group["params"]]} for group in self.param_groups]
        self.inner = build(twins, lr)
        self.state = self.inner.state

    @abstractmethod
    def twin_of(self, parameter: torch.Tensor) -> torch.nn.Parameter:
        """An empty one, of the format that it will have."""

    @abstractmethod
    def lend(self, tensor: torch.Tensor) -> torch.Tensor:
        """A weight or a gradient as the inner optimizer shall see it."""

    @abstractmethod
    def take_back(self, twin: torch.Tensor, parameter: torch.Tensor) -> None:
        """Write a stepped weight to its parameter."""

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every parameter that has a gradient."""
        loss = closure() if closure is not None else None
        _tell_settings(self.param_groups, self.inner.param_groups)
        with torch.no_grad():
            for group, inner in zip(self.param_groups, self.inner.param_groups, strict=True):
                for parameter, twin in zip(group["params"], inner["params"], strict=True):
                    if parameter.grad is not None:
                        self._step_one(parameter, twin)
        return loss

    def _step_one(self, parameter: torch.Tensor, twin: torch.Tensor) -> None:
        """The inner optimizer steps what has a gradient: this twin alone."""
        assert parameter.grad is not None
        empty = twin.data
        twin.data, twin.grad = self.lend(parameter.data), self.lend(parameter.grad)
        try:
            self.step_inner()
            self.take_back(twin.data, parameter)
        finally:
            twin.grad, twin.data = None, empty

    def step_inner(self) -> None:
        """One twin is there."""
        self.inner.step()

    def state_dict(self) -> dict[str, Any]:
        """As the inner optimizer writes it."""
        _tell_settings(self.param_groups, self.inner.param_groups)
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As the inner optimizer reads it."""
        self.inner.load_state_dict(state_dict)
        self.state = self.inner.state
        _tell_settings(self.inner.param_groups, self.param_groups)


def _tell_settings(groups: list[dict[str, Any]], others: list[dict[str, Any]]) -> None:
    """Learning rates are set on one of the two and used by the other."""
    for group, other in zip(groups, others, strict=True):
        other.update({name: value for name, value in group.items() if name != "params"})
