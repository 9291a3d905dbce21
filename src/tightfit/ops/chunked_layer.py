"""Chunked layers: a transformer layer runs its batch in chunks of a few rows, each recomputed in the backward pass.

The layer's forward is replaced. It splits the hidden states of the whole batch into chunks without their padding, runs
the original forward on each under checkpointing, and joins the outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tightfit.data.micro_batches import Chunk, RowLimits, partition_by_tokens
from tightfit.errors import RecipeError
from tightfit.messages import msg
from tightfit.ops.buffer_pool import BufferPool
from tightfit.ops.deferred_norm import DeferredNorm, HiddenStatesChanged, NormNotLast, PendingNorm, find_last_norm
from tightfit.ops.fake import context, is_fake
from tightfit.ops.grad_accumulation import AccumulatingLinear, accumulate_in_place


def chunk_layers(
    model: nn.Module, stacks: Sequence[nn.ModuleList], limits: RowLimits, layers_per_block: int, device: str
) -> None:
    """Make every `layers_per_block` layers of each stack run together, a few rows at a time."""
    plan = _ChunkPlan(limits)
    model.register_forward_pre_hook(plan.on_forward, with_kwargs=True)
    for stack in stacks:
        groups = [list(stack)[start : start + layers_per_block] for start in range(0, len(stack), layers_per_block)]
        pending = PendingNorm()
        for number, group in enumerate(groups, 1):
            _wrap_group(group, plan, pending, BufferPool(device), is_last=number == len(groups))


class _ChunkPlan:
    """The chunks of the current batch: each holds as many tokens as `size` of its longest rows, so more short rows."""

    def __init__(self, limits: RowLimits) -> None:
        self.limits, self.width = limits, 0
        self._chunks: list[Chunk] | None = None

    def on_forward(self, model: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        """Forward pre-hook of the model: plan the chunks from the lengths of the rows."""
        lengths = None if getattr(model.config, "is_encoder_decoder", False) else _lengths(kwargs.get("attention_mask"))
        self.width = kwargs["input_ids"].shape[1]
        self._chunks = partition_by_tokens(lengths, self.limits.rows_for(self.width) * self.width) if lengths else None

    def for_batch(self, batch: int, width: int) -> list[Chunk]:
        """The chunks for a layer; by rows alone where its input does not have the shape of the model's batch."""
        if self._chunks is not None and self.width == width and self._chunks[-1].end == batch:
            return self._chunks
        size = self.limits.rows_for(width)
        return [Chunk(start, min(start + size, batch), width) for start in range(0, batch, size)]


def _lengths(mask: torch.Tensor | None) -> list[int] | None:
    """The lengths of right-padded rows, else None."""
    if mask is None:
        return None
    if is_fake(mask):
        lengths = context().row_lengths
        return list(lengths) if lengths is not None else None
    if mask.dim() != 2:
        return None
    used = mask.cpu().numpy() != 0  # counted on the host, where the result is needed
    return [int(n) for n in used.sum(axis=1)] if used[:, 0].all() else None


def _wrap_group(
    group: list[nn.Module], plan: _ChunkPlan, pending: PendingNorm, pool: BufferPool, *, is_last: bool
) -> None:
    """Make the first layer run the whole group, and the others return their input."""
    first, *others = group
    norm = None if is_last else find_last_norm(group[-1])
    chunked = _ChunkedForward(
        first, [layer.forward for layer in group], plan, accumulate_in_place(group), pending, norm, pool
    )
    for layer in others:
        layer.forward = _SkippedForward(layer, layer.forward, chunked)
    first.forward = chunked


class _ChunkedForward:
    """The forward of one or more consecutive layers, in chunks of the batch."""

    def __init__(
        self,
        layer: nn.Module,
        forwards: list[Callable[..., Any]],
        plan: _ChunkPlan,
        linears: list[AccumulatingLinear],
        pending: PendingNorm,
        norm: DeferredNorm | None,
        pool: BufferPool,
    ) -> None:
        self.layer, self.forwards, self.plan, self.linears = layer, forwards, plan, linears
        self.pending, self.norm = pending, norm
        self.shared_args: list[Any] = []
        self.pool, self.most_tokens = pool, 0

    def __call__(self, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not self.layer.training:
            return self.forwards[0](hidden, *args, **kwargs)
        self.shared_args = [*args, *kwargs.values()] if len(self.forwards) > 1 else []
        batch, width = hidden.shape[:2]
        chunks = self.plan.for_batch(batch, width)
        for linear in self.linears:
            linear.start_batch(len(chunks))
        slicers = [_ArgSlicer(chunk, batch, width) for chunk in chunks]
        run = partial(self._run, self._pending_norm(hidden))
        self.most_tokens = max((chunk.end - chunk.start) * chunk.length for chunk in chunks)
        with self.pool.active():
            outputs = [
                run([states, *sliced(args)], {key: sliced(value) for key, value in kwargs.items()})
                for states, sliced in zip(split_hidden(hidden, chunks, self.pool), slicers, strict=True)
            ]
        joined = _join_outputs(outputs, chunks, width, self.pool if hidden.requires_grad else None)
        self.pending.put(joined, self.norm)
        return joined

    def _pending_norm(self, hidden: torch.Tensor) -> DeferredNorm | None:
        try:
            return self.pending.take(hidden)
        except HiddenStatesChanged:
            raise RecipeError(
                msg(
                    "'chunked-layers' cannot be used here: the model changes the hidden states between its layers. "
                    "Use micro-batch instead."
                )
            ) from None

    def forward(self, before: DeferredNorm | None, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Run one chunk through all layers of the group, after the norm that the previous group deferred."""
        self.pool.size_for(hidden, self.most_tokens)
        if before is not None:
            hidden = before.forward(hidden)
        for forward in self.forwards[:-1]:
            hidden = forward(hidden, *args, **kwargs)
            if not isinstance(hidden, torch.Tensor):
                raise RecipeError(
                    msg(
                        "'chunked-layers' cannot run several layers together: a {layer} returns more than its hidden "
                        "states. Use layers=1.",
                        layer=type(self.layer).__name__,
                    )
                )
        out = self.forwards[-1](hidden, *args, **kwargs)
        return self.norm.check_output(out) if self.norm is not None else out

    def _run(self, before: DeferredNorm | None, inputs: list[Any], settings: dict[str, Any]) -> Any:
        forward = partial(self.forward, before, **settings)
        try:
            return checkpoint(forward, *inputs, use_reentrant=False) if torch.is_grad_enabled() else forward(*inputs)
        except NormNotLast:  # only possible for the first chunk
            return self._run(before, inputs, settings)


class _SkippedForward:
    """The forward of a layer that the first layer of its group has already run."""

    def __init__(self, layer: nn.Module, forward: Callable[..., Any], by: _ChunkedForward) -> None:
        self.layer, self.forward, self.by = layer, forward, by

    def __call__(self, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not self.layer.training:
            return self.forward(hidden, *args, **kwargs)
        own, shared = [*args, *kwargs.values()], self.by.shared_args
        if len(own) != len(shared) or any(a is not b for a, b in zip(own, shared, strict=True)):
            raise RecipeError(
                msg(
                    "'chunked-layers' cannot run several layers together: a {layer} gets other arguments than the "
                    "layer before it. Use layers=1.",
                    layer=type(self.layer).__name__,
                )
            )
        return hidden


class _ArgSlicer:
    """Cuts a layer's arguments down to the rows and tokens of one chunk."""

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
        """Drop the padding: tokens are the second dimension of hidden states and positions, the last two of masks."""
        if self.chunk.length == self.width:
            return value
        for dim in (1,) if _has_features(value) else (1, 2) if value.dim() == 3 else range(2, value.dim()):
            if value.shape[dim] == self.width:
                value = value.narrow(dim, 0, self.chunk.length)
        return value


def _has_features(value: torch.Tensor) -> bool:
    """Whether the last dimension is that of hidden states or rotary positions, which may be as large as a row is long.

    Masks and relative positions of three dimensions are integers or booleans.
    """
    return value.dim() == 2 or (value.dim() == 3 and value.is_floating_point())


def _join_outputs(outputs: list[Any], chunks: list[Chunk], width: int, pool: BufferPool | None) -> Any:
    """Concatenate the outputs of the chunks, padded to one width; a layer may return more than its hidden states."""
    first = outputs[0]
    if isinstance(first, (tuple, list)):
        return type(first)(_join_outputs(list(parts), chunks, width, pool) for parts in zip(*outputs, strict=True))
    if not isinstance(first, torch.Tensor) or first.shape[0] != chunks[0].end:  # T5's position bias is one for all rows
        return first
    return join_hidden(outputs, chunks, width, pool) if first.dim() == 3 else torch.cat(outputs)


# Split and join. With torch's own slicing each chunk would keep the hidden states of the whole batch alive, and its
# backward pass would allocate a gradient of the whole batch. Here a chunk is a copy, and the gradient is built once.


def split_hidden(states: torch.Tensor, chunks: list[Chunk], pool: BufferPool) -> list[torch.Tensor]:
    """The hidden states of each chunk, without padding; the backward pass releases the pool here."""
    return list(_Split.apply(states, chunks, pool))


def join_hidden(states: list[torch.Tensor], chunks: list[Chunk], width: int, pool: BufferPool | None) -> torch.Tensor:
    """The hidden states of the whole batch from those of its chunks, with zeros as padding.

    The backward pass activates the pool here; it is None where the backward pass does not reach the split.
    """
    joined: torch.Tensor = _Join.apply(chunks, width, pool, *states)
    return joined


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, chunks: list[Chunk], pool: BufferPool) -> tuple[torch.Tensor, ...]:
        ctx.chunks, ctx.width, ctx.pool = chunks, states.shape[1], pool
        return tuple(_view(states, chunk).clone(memory_format=torch.contiguous_format) for chunk in chunks)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        ctx.pool.release()
        return _scatter(gradients, ctx.chunks, ctx.width), None, None


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, chunks: list[Chunk], width: int, pool: BufferPool | None, *states: torch.Tensor
    ) -> torch.Tensor:
        ctx.chunks, ctx.pool = chunks, pool
        return _scatter(states, chunks, width)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if ctx.pool is not None:
            ctx.pool.activate()
        return None, None, None, *(_view(gradient, chunk) for chunk in ctx.chunks)


def _view(states: torch.Tensor, chunk: Chunk) -> torch.Tensor:
    return states[chunk.start : chunk.end, : chunk.length]


def _scatter(states: tuple[torch.Tensor, ...], chunks: list[Chunk], width: int) -> torch.Tensor:
    """Copy the chunks into one tensor of the whole batch, padded with zeros."""
    whole = states[0].new_empty((chunks[-1].end, width, *states[0].shape[2:]))
    for chunk, part in zip(chunks, states, strict=True):
        _view(whole, chunk).copy_(part)
        whole[chunk.start : chunk.end, chunk.length :].zero_()
    return whole
