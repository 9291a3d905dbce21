"""Adafactor in tiles that fit the processor's cache.

The arithmetic is that of `transformers.Adafactor` with a given learning rate. The version in transformers reads and
writes every matrix some twenty times and allocates two or three more of its size; on a CPU this takes as long as a
forward pass. Here a few rows at a time are squared, summed and updated: memory is read three times and nothing larger
than a tile is allocated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from tightfit.ops.fake import representative
from tightfit.optimizers.base import PerParameter, tile_elements

_TINY = 1e-30  # avoids division by zero
_DECAY = -0.8  # of the second moment: beta2 = 1 - step^-0.8
_CLIP_THRESHOLD = 1.0  # root mean square that updates are clipped to
_TILE = 1 << 19  # elements that fit the cache beside their squares


class Adafactor(PerParameter):
    """Second moments by row and column, no first moment."""

    def update(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        if gradient.is_sparse:
            raise RuntimeError("Adafactor does not support sparse gradients.")
        state = self.state[parameter]
        state["step"] = state.get("step", 0) + 1
        beta2_complement = state["step"] ** _DECAY  # 1 - beta2: the share of the newest gradient
        update = _update_matrix if parameter.dim() == 2 else _update_whole
        lr = group["lr"]
        update(state, parameter, gradient, lr, 1 - lr * group["weight_decay"], beta2_complement)


def _update_matrix(
    state: dict[str, Any],
    weight: torch.Tensor,
    gradient: torch.Tensor,
    lr: float,
    decay: float,
    beta2_complement: float,
) -> None:
    rows, columns = _mean_squares(gradient)
    row = _moment(state, "exp_avg_sq_row", rows, beta2_complement)
    column = _moment(state, "exp_avg_sq_col", columns, beta2_complement)
    row_factor, column_factor = (row / row.mean()).rsqrt_(), column.rsqrt()
    factor = (row_factor * (-lr / _clip_divisor(gradient, row_factor, column_factor))).unsqueeze_(1)
    for rows_here, tile, scratch in _tiles(gradient):
        weight[rows_here].mul_(decay).addcmul_(torch.mul(tile, column_factor, out=scratch), factor[rows_here])


def _update_whole(
    state: dict[str, Any],
    weight: torch.Tensor,
    gradient: torch.Tensor,
    lr: float,
    decay: float,
    beta2_complement: float,
) -> None:
    """Vectors are small and have a second moment per element."""
    moment = _moment(state, "exp_avg_sq", gradient.square().add_(_TINY), beta2_complement)
    update = moment.rsqrt().mul_(gradient)
    divisor = (update.norm() / math.sqrt(update.numel()) / _CLIP_THRESHOLD).clamp_(min=1.0)
    weight.mul_(decay).sub_(update.div_(divisor).mul_(lr))


def _mean_squares(gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean squares of every row and of every column."""
    rows, columns = gradient.new_empty(gradient.shape[0]), gradient.new_zeros(gradient.shape[1])
    for rows_here, tile, scratch in _tiles(gradient):
        squares = torch.square(tile, out=scratch)
        torch.mean(squares, dim=1, out=rows[rows_here])
        columns += squares.sum(dim=0)
    return rows.add_(_TINY), columns.div_(gradient.shape[0]).add_(_TINY)


def _moment(state: dict[str, Any], name: str, squares: torch.Tensor, beta2_complement: float) -> torch.Tensor:
    if name not in state:
        state[name] = torch.zeros_like(squares)
    moment: torch.Tensor = state[name].lerp_(squares, beta2_complement)
    return moment


def _clip_divisor(gradient: torch.Tensor, row_factor: torch.Tensor, column_factor: torch.Tensor) -> torch.Tensor:
    """The update's root mean square over the clip threshold; at least 1."""
    total = gradient.new_zeros(())
    rows, columns = row_factor.square(), column_factor.square()
    for rows_here, tile, scratch in _tiles(gradient):
        total += torch.square(tile, out=scratch) @ columns @ rows[rows_here]
    return total.div_(gradient.numel()).sqrt_().div_(_CLIP_THRESHOLD).clamp_(min=1.0)


def _tiles(matrix: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
    """A few rows at a time: their indices, their values, and a scratch tensor of the same size."""
    rows = max(1, tile_elements(matrix, _TILE) // matrix.shape[1])
    scratch = matrix.new_empty(min(rows, matrix.shape[0]), matrix.shape[1])
    for start in representative(range(0, matrix.shape[0], rows), matrix.shape[0] / len(scratch), like=matrix):
        tile = matrix[start : start + rows]
        yield slice(start, start + rows), tile, scratch[: len(tile)]
