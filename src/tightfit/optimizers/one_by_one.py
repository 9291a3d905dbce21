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

    @abstractmethod
    def update(self, parameter: torch.Tensor, gradient: torch.Tensor, lr: float, weight_decay: float) -> None:
        """Move one parameter."""
