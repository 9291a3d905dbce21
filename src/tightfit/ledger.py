"""Ledger: whether a step that failed had already changed a weight or what the optimizer remembers.

torch counts every change of a tensor, so no copies are needed: a few counters tell whether a step can simply be tried
again or was left half done.
"""

from __future__ import annotations

import torch

from tightfit.compat import version_of


class Ledger:
    """The counters as they were before a step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._state = {parameter: dict(values) for parameter, values in optimizer.state.items()}
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        kept = [value for values in self._state.values() for value in values.values()]
        tensors = [*parameters, *(value for value in kept if isinstance(value, torch.Tensor))]
        self._versions = [(tensor, version_of(tensor)) for tensor in tensors]

    def untouched(self) -> bool:
        """Whether every weight and every remembered tensor is as it was, and what is new was only made, not used."""
        new = [values for parameter, values in self._optimizer.state.items() if parameter not in self._state]
        made = [value for values in new for value in values.values() if isinstance(value, torch.Tensor)]
        # torch's fused kernels do not count what they do to weights, but to the number of steps they do.
        as_they_were = all(version_of(tensor) == version for tensor, version in self._versions)
        return as_they_were and all(version_of(tensor) == 0 for tensor in made)

    def restore(self) -> None:
        """After an untouched step: forget state that was just being made, and put counted steps back."""
        self._optimizer.state.clear()
        self._optimizer.state.update({parameter: dict(values) for parameter, values in self._state.items()})
