"""States: those of a batch cut into pieces of some rows without their padding, and put together again.

torch's own slicing would keep the whole batch's states alive for each piece, and make a gradient of the whole batch
for each piece on the way back. Here a piece is a copy of its own, and the gradient is put together once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tightfit.data.batches import Chunk, RowLimits, partition_by_tokens
from tightfit.errors import RecipeError
from tightfit.ops.buffer_pool import BufferPool
from tightfit.ops.chunked_linear import (
    AccumulatingLinear,
    DeferredNorm,
    Handed,
    Missed,
    accumulate_in_place,
    find_last_norm,
)
from tightfit.ops.fake import is_fake


def split_hidden(states: torch.Tensor, chunks: list[Chunk], rooms: BufferPool) -> list[torch.Tensor]:
    """The states of each piece, without the padding. On the way back the rooms close here."""
    return list(_Split.apply(states, chunks, rooms))


def join_hidden(states: list[torch.Tensor], chunks: list[Chunk], width: int, rooms: BufferPool | None) -> torch.Tensor:
    """The whole batch's states from those of the pieces, zeros where there is padding.

    On the way back rooms open here; none where the way ends before they would close.
    """
    joined: torch.Tensor = _Join.apply(chunks, width, rooms, *states)
    return joined


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, chunks: list[Chunk], rooms: BufferPool) -> tuple[torch.Tensor, ...]:
        ctx.chunks, ctx.width, ctx.rooms = chunks, states.shape[1], rooms
        return tuple(_part(states, chunk).clone(memory_format=torch.contiguous_format) for chunk in chunks)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        ctx.rooms.close()
        return _together(gradients, ctx.chunks, ctx.width), None, None


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, chunks: list[Chunk], width: int, rooms: BufferPool | None, *states: torch.Tensor
    ) -> torch.Tensor:
        ctx.chunks, ctx.rooms = chunks, rooms
        return _together(states, chunks, width)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if ctx.rooms is not None:
            ctx.rooms.open()
        return None, None, None, *(_part(gradient, chunk) for chunk in ctx.chunks)


def _part(states: torch.Tensor, chunk: Chunk) -> torch.Tensor:
    return states[chunk.start : chunk.end, : chunk.length]


def _together(states: tuple[torch.Tensor, ...], chunks: list[Chunk], width: int) -> torch.Tensor:
    whole = states[0].new_empty((chunks[-1].end, width, *states[0].shape[2:]))
    for chunk, part in zip(chunks, states, strict=True):
        _part(whole, chunk).copy_(part)
        whole[chunk.start : chunk.end, chunk.length :].zero_()
    return whole


# A layer run in chunks of the batch's rows, each recomputed in the backward pass.


def slice_layers(
    model: nn.Module, stacks: Sequence[nn.ModuleList], limits: RowLimits, together: int, device: str
) -> None:
    """Let every `together` layers of each stack run a few rows at a time."""
    chunks = _Pieces(limits)
    model.register_forward_pre_hook(chunks.look, with_kwargs=True)
    for stack in stacks:
        groups = [list(stack)[start : start + together] for start in range(0, len(stack), together)]
        handed = Handed()
        for number, group in enumerate(groups, 1):
            _run_together(group, chunks, handed, BufferPool(device), is_last=number == len(groups))


class _Pieces:
    """How the batch at hand is cut. Pieces hold as many tokens as `size` of its longest texts, so more short ones."""

    def __init__(self, limits: RowLimits) -> None:
        self.limits, self.width = limits, 0
        self._cut: list[Chunk] | None = None

    def look(self, model: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        """Before the model runs: how long are the texts?"""
        lengths = None if getattr(model.config, "is_encoder_decoder", False) else _lengths(kwargs.get("attention_mask"))
        self.width = kwargs["input_ids"].shape[1]
        self._cut = partition_by_tokens(lengths, self.limits.at(self.width) * self.width) if lengths else None

    def of(self, batch: int, width: int) -> list[Chunk]:
        """Rows and tokens of each piece; where a layer does not see the batch as it was, by rows alone."""
        if self._cut is not None and self.width == width and self._cut[-1].end == batch:
            return self._cut
        size = self.limits.at(width)
        return [Chunk(start, min(start + size, batch), width) for start in range(0, batch, size)]


def _lengths(mask: torch.Tensor | None) -> list[int] | None:
    """Of texts that are padded on the right. A mask without data, in a rehearsal, may say how long they would be."""

    if mask is None or is_fake(mask):
        return getattr(mask, "texts", None)
    if mask.dim() != 2 or not bool((mask[:, 0] != 0).all()):
        return None
    return [int(n) for n in mask.sum(dim=1).tolist()]


def _run_together(group: list[nn.Module], chunks: _Pieces, handed: Handed, rooms: BufferPool, *, is_last: bool) -> None:
    """The first layer runs them all; the others hand on what they are given."""

    first, *others = group
    norm = None if is_last else find_last_norm(group[-1])
    sliced = _SlicedForward(
        first, [layer.forward for layer in group], chunks, accumulate_in_place(group), handed, norm, rooms
    )
    for layer in others:
        layer.forward = _Done(layer, layer.forward, sliced)
    first.forward = sliced


class _SlicedForward:
    """The forward of a layer, or of a few in a row, some rows at a time."""

    def __init__(
        self,
        layer: nn.Module,
        forwards: list[Callable[..., Any]],
        chunks: _Pieces,
        linears: list[AccumulatingLinear],
        handed: Handed,
        norm: DeferredNorm | None,
        rooms: BufferPool,
    ) -> None:
        self.layer, self.forwards, self.chunks, self.linears = layer, forwards, chunks, linears
        self.handed, self.norm = handed, norm
        self.given: list[Any] = []
        self.rooms, self.most_tokens = rooms, 0

    def __call__(self, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> Any:

        if not self.layer.training:
            return self.forwards[0](hidden, *args, **kwargs)
        self.given = [*args, *kwargs.values()] if len(self.forwards) > 1 else []
        batch, width = hidden.shape[:2]
        chunks = self.chunks.of(batch, width)
        for linear in self.linears:
            linear.begin(len(chunks))
        cuts = [_Cut(chunk, batch, width) for chunk in chunks]
        run = partial(self._run, self._norm_left_by_the_one_before(hidden))
        self.most_tokens = max((chunk.end - chunk.start) * chunk.length for chunk in chunks)
        with self.rooms.opened():
            outputs = [
                run([states, *cut(args)], {key: cut(value) for key, value in kwargs.items()})
                for states, cut in zip(split_hidden(hidden, chunks, self.rooms), cuts, strict=True)
            ]
        joined = _join_outputs(outputs, chunks, width, self.rooms if hidden.requires_grad else None)
        self.handed.on(joined, self.norm)
        return joined

    def _norm_left_by_the_one_before(self, hidden: torch.Tensor) -> DeferredNorm | None:
        try:
            return self.handed.to_next(hidden)
        except ValueError as error:
            raise RecipeError(f"'chunked-layers' cannot be used here: {error}. Use slice in its place.") from None

    def forward(self, before: DeferredNorm | None, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """One piece through all of them."""

        self.rooms.meet(hidden, self.most_tokens)
        if before is not None:
            hidden = before.forward(hidden)
        for forward in self.forwards[:-1]:
            hidden = forward(hidden, *args, **kwargs)
            if not isinstance(hidden, torch.Tensor):
                raise RecipeError(_not_together(self.layer, "hands on more than its states"))
        out = self.forwards[-1](hidden, *args, **kwargs)
        return self.norm.look(out) if self.norm is not None else out

    def _run(self, before: DeferredNorm | None, inputs: list[Any], settings: dict[str, Any]) -> Any:

        forward = partial(self.forward, before, **settings)
        try:
            return checkpoint(forward, *inputs, use_reentrant=False) if torch.is_grad_enabled() else forward(*inputs)
        except Missed:  # only ever for the first piece
            return self._run(before, inputs, settings)


class _Done:
    """The forward of a layer that another one has run already."""

    def __init__(self, layer: nn.Module, forward: Callable[..., Any], by: _SlicedForward) -> None:
        self.layer, self.forward, self.by = layer, forward, by

    def __call__(self, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not self.layer.training:
            return self.forward(hidden, *args, **kwargs)
        given = [*args, *kwargs.values()]
        if len(given) != len(self.by.given) or any(a is not b for a, b in zip(given, self.by.given, strict=True)):
            raise RecipeError(_not_together(self.layer, "is given something else than the one before"))
        return hidden


def _not_together(layer: nn.Module, why: str) -> str:
    return f"'chunked-layers' cannot run several layers together: a {type(layer).__name__} {why}. Leave layers=1."


class _Cut:
    """Takes some rows, and of them the used tokens, out of whatever a layer is given."""

    def __init__(self, chunk: Chunk, batch: int, width: int) -> None:
        self.chunk, self.batch, self.width = chunk, batch, width

    def __call__(self, value: Any) -> Any:

        if isinstance(value, (tuple, list)):
            return type(value)(self(inner) for inner in value)
        if not isinstance(value, torch.Tensor) or value.dim() < 2 or value.shape[0] not in (1, self.batch):
            return value
        if value.shape[0] == self.batch and self.batch > 1:
            value = value[self.chunk.start : self.chunk.end]
        return self._trimmed(value)

    def _trimmed(self, value: torch.Tensor) -> torch.Tensor:
        """Tokens are the second dimension of states and positions, and the last two of masks."""
        if self.chunk.length == self.width:
            return value
        tokens = (1,) if value.dim() <= 3 and value.shape[1:] != (self.width, self.width) else range(1, value.dim())
        for dim in tokens:
            if value.shape[dim] == self.width and not (value.dim() == 4 and dim == 1):
                value = value.narrow(dim, 0, self.chunk.length)
        return value


def _join_outputs(outputs: list[Any], chunks: list[Chunk], width: int, rooms: BufferPool | None) -> Any:
    """The pieces' outputs below each other, padded to one width; a layer may return more than its states."""

    first = outputs[0]
    if isinstance(first, (tuple, list)):
        return type(first)(_join_outputs(list(parts), chunks, width, rooms) for parts in zip(*outputs, strict=True))
    if not isinstance(first, torch.Tensor) or first.shape[0] != chunks[0].end:  # T5's position bias is one for all rows
        return first
    return join_hidden(outputs, chunks, width, rooms) if first.dim() == 3 else torch.cat(outputs)
