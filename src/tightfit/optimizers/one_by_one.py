"""One by one: an optimizer that updates each parameter by itself, which is all that ours have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch


class OneByOne(torch.optim.Optimizer):
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
