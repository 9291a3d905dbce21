"""States: those of a batch cut into pieces of some rows without their padding, and put together again.

torch's own slicing would keep the whole batch's states alive for each piece, and make a gradient of the whole batch
for each piece on the way back. Here a piece is a copy of its own, and the gradient is put together once.
"""

from __future__ import annotations

from typing import Any

import torch

from tightfit.pieces import Piece
from tightfit.rooms import Rooms


def split_states(states: torch.Tensor, pieces: list[Piece], rooms: Rooms) -> list[torch.Tensor]:
    """The states of each piece, without the padding. On the way back the rooms close here."""
    return list(_Split.apply(states, pieces, rooms))


def join_states(states: list[torch.Tensor], pieces: list[Piece], width: int, rooms: Rooms | None) -> torch.Tensor:
    """The whole batch's states from those of the pieces, zeros where there is padding.

    On the way back rooms open here; none where the way ends before they would close.
    """
    joined: torch.Tensor = _Join.apply(pieces, width, rooms, *states)
    return joined


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, pieces: list[Piece], rooms: Rooms) -> tuple[torch.Tensor, ...]:
        ctx.pieces, ctx.width, ctx.rooms = pieces, states.shape[1], rooms
        return tuple(_part(states, piece).clone(memory_format=torch.contiguous_format) for piece in pieces)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        ctx.rooms.close()
        return _together(gradients, ctx.pieces, ctx.width), None, None


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pieces: list[Piece], width: int, rooms: Rooms | None, *states: torch.Tensor) -> torch.Tensor:
        ctx.pieces, ctx.rooms = pieces, rooms
        return _together(states, pieces, width)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if ctx.rooms is not None:
            ctx.rooms.open()
        return None, None, None, *(_part(gradient, piece) for piece in ctx.pieces)


def _part(states: torch.Tensor, piece: Piece) -> torch.Tensor:
    return states[piece.start : piece.end, : piece.length]


def _together(states: tuple[torch.Tensor, ...], pieces: list[Piece], width: int) -> torch.Tensor:
    whole = states[0].new_empty((pieces[-1].end, width, *states[0].shape[2:]))
    for piece, part in zip(pieces, states, strict=True):
        _part(whole, piece).copy_(part)
        whole[piece.start : piece.end, piece.length :].zero_()
    return whole
