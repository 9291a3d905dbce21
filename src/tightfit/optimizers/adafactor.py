"""Adafactor in pieces that fit a processor's cache.

The arithmetic is that of `transformers.Adafactor` with a given learning rate. There every matrix goes through memory
some twenty times, and two or three more of its size are made on the way; on a CPU that takes as long as a forward
pass. Here a few rows at a time are squared, summed and stepped: memory is gone through three times and nothing
larger than a piece is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from tightfit.ops.fake import each
from tightfit.optimizers.base import PerParameter

_TINY = 1e-30  # keeps a square of zero from being divided by
_DECAY = -0.8  # of the second moment: 1 - step^-0.8
_LARGEST_UPDATE = 1.0  # root mean square that updates are cut to
_PIECE = {"cpu": 1 << 19}  # numbers that a cache holds beside their squares
_WHOLE = 1 << 24  # on cards, where each piece is a launch


class Adafactor(PerParameter):
    """Second moments by row and column, no first moment."""

    def update(self, parameter: torch.Tensor, gradient: torch.Tensor, lr: float, weight_decay: float) -> None:
        if gradient.is_sparse:
            raise RuntimeError("Adafactor does not support sparse gradients.")
        state = self.state[parameter]
        state["step"] = state.get("step", 0) + 1
        fresh = state["step"] ** _DECAY  # the share of the newest gradient
        update = _update_matrix if parameter.dim() == 2 else _update_whole
        update(state, parameter, gradient, lr, 1 - lr * weight_decay, fresh)


def _update_matrix(
    state: dict[str, Any], weight: torch.Tensor, gradient: torch.Tensor, lr: float, keep: float, fresh: float
) -> None:
    rows, columns = _mean_squares(gradient)
    row, column = _moment(state, "exp_avg_sq_row", rows, fresh), _moment(state, "exp_avg_sq_col", columns, fresh)
    by_row, by_column = (row / row.mean()).rsqrt_(), column.rsqrt()
    factor = (by_row * (-lr / _excess(gradient, by_row, by_column))).unsqueeze_(1)
    for here, piece, room in _pieces(gradient):
        weight[here].mul_(keep).addcmul_(torch.mul(piece, by_column, out=room), factor[here])


def _update_whole(
    state: dict[str, Any], weight: torch.Tensor, gradient: torch.Tensor, lr: float, keep: float, fresh: float
) -> None:
    """Vectors are small and keep every number's second moment."""
    moment = _moment(state, "exp_avg_sq", gradient.square().add_(_TINY), fresh)
    update = moment.rsqrt().mul_(gradient)
    excess = (update.norm() / math.sqrt(update.numel()) / _LARGEST_UPDATE).clamp_(min=1.0)
    weight.mul_(keep).sub_(update.div_(excess).mul_(lr))


def _mean_squares(gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of every row and of every column."""
    rows, columns = gradient.new_empty(gradient.shape[0]), gradient.new_zeros(gradient.shape[1])
    for here, piece, room in _pieces(gradient):
        squares = torch.square(piece, out=room)
        torch.mean(squares, dim=1, out=rows[here])
        columns += squares.sum(dim=0)
    return rows.add_(_TINY), columns.div_(gradient.shape[0]).add_(_TINY)


def _moment(state: dict[str, Any], name: str, squares: torch.Tensor, fresh: float) -> torch.Tensor:
    if name not in state:
        state[name] = torch.zeros_like(squares)
    moment: torch.Tensor = state[name].lerp_(squares, fresh)
    return moment


def _excess(gradient: torch.Tensor, by_row: torch.Tensor, by_column: torch.Tensor) -> torch.Tensor:
    """How many times too large the update's root mean square is; 1 if it is not."""
    total = gradient.new_zeros(())
    rows, columns = by_row.square(), by_column.square()
    for here, piece, room in _pieces(gradient):
        total += torch.square(piece, out=room) @ columns @ rows[here]
    return total.div_(gradient.numel()).sqrt_().div_(_LARGEST_UPDATE).clamp_(min=1.0)


def _pieces(matrix: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
    """A few rows at a time: where they are, they themselves, and room for as many numbers."""
    rows = max(1, _PIECE.get(matrix.device.type, _WHOLE) // matrix.shape[1])
    room = matrix.new_empty(min(rows, matrix.shape[0]), matrix.shape[1])
    for start in each(range(0, matrix.shape[0], rows), matrix.shape[0] / len(room), like=matrix):
        piece = matrix[start : start + rows]
        yield slice(start, start + rows), piece, room[: len(piece)]
