"""Disk: whether there is room for what a run will write."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tightfit.assembly import parameter_groups
from tightfit.elsewhere import elsewhere
from tightfit.errors import OutputError
from tightfit.strategies.parts import Parts
from tightfit.units import format_bytes

if TYPE_CHECKING:
    import torch
    from torch import nn


def refuse_full_disk(folder: Path, parts: Parts, checkpoints: int, features: int = 0) -> None:
    """The checkpoints that are there at once, the final weights and what is kept of the rows must all fit."""
    weights = sum(parameter.nbytes for parameter in parts.model.parameters())
    state = elsewhere(optimizer_bytes, parts)
    needed = checkpoints * (_saved_bytes(parts) + state) + weights + features
    free = shutil.disk_usage(_nearest_existing(folder)).free
    if free < needed:
        raise OutputError(
            f"The run needs {format_bytes(needed)} of disk for its checkpoints and {format_bytes(free)} are free "
            f"under '{folder}': free some, or put --out on another disk."
        )


def checkpoint_bytes(parts: Parts, optimizer: torch.optim.Optimizer) -> int:
    """What a checkpoint takes now: the weights it holds and what the optimizer remembers."""
    return _saved_bytes(parts) + _state_bytes(optimizer)


def _saved_bytes(parts: Parts) -> int:
    """Weights that have several names are written once."""
    saved = {weight.data_ptr(): weight.nbytes for weight in parts.checkpoint_weights.values()}
    return sum(saved.values())


def optimizer_bytes(parts: Parts) -> int:
    """What the optimizer will remember: the same optimizer, stepped once on shapes without data."""
    from tightfit.compat import FakeTensorMode

    with FakeTensorMode():
        groups = [
            {**group, "params": [_shape_of(parameter) for parameter in group["params"]]}
            for group in parameter_groups(parts)
        ]
        optimizer = parts.optimizer(groups, parts.learning_rate)
        optimizer.step()
    return _state_bytes(optimizer)


def _state_bytes(optimizer: torch.optim.Optimizer) -> int:
    import torch

    state = [value for values in optimizer.state.values() for value in values.values()]
    return sum(value.nbytes for value in state if isinstance(value, torch.Tensor))


def _shape_of(parameter: nn.Parameter) -> nn.Parameter:
    import torch

    shape = torch.nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype))
    shape.grad = torch.empty_like(shape)
    return shape


def _nearest_existing(folder: Path) -> Path:
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
