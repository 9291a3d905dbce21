"""Run each layer a few rows at a time, and its second run in the backward pass as well.

Slices of the whole model need a backward pass each, and gradients that wait for the last one. Here the whole batch
goes through once, layer by layer; only inside a layer it is cut. Every piece is checkpointed: what it computed is
forgotten and computed again when the backward pass arrives, one piece after the other. So a batch of any size needs
the insides of one piece, there is one backward pass, and each gradient is complete when its layer is done.
Rows are sorted by length and every piece loses the padding it does not need, which often wins back the time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from tightfit.errors import RecipeError
from tightfit.layers import layer_stacks
from tightfit.strategy import Kind, Parts, Result, Strategy

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True)
class SliceLayers(Strategy):
    """Checkpointing by layer and by slice at once."""

    name: ClassVar[str] = "slice-layers"
    frees: ClassVar[tuple[Kind, ...]] = (Kind.ACTIVATIONS,)
    result: ClassVar[Result] = Result.SAME
    summary: ClassVar[str] = (
        "checkpoints every layer and runs it a few rows at a time, in one pass over the whole batch"
    )
    chooses: ClassVar[str | None] = "recomputation"
    scales: ClassVar[bool] = False

    size: int = Field(ge=1)
    """Rows that go through a layer at once."""

    def apply(self, parts: Parts) -> Parts:
        stacks = layer_stacks(parts.model)
        if not stacks:
            raise RecipeError(f"'{self.name}' finds no layers in {type(parts.model).__name__}: use slice in its place.")
        texts = _Texts()
        parts.model.register_forward_pre_hook(texts.look, with_kwargs=True)
        for layer in (layer for stack in stacks for layer in stack):
            layer.forward = _SlicedForward(layer, layer.forward, self.size, texts)
        return replace(parts, layer_rows=min(self.size, parts.batch_size))


class _Texts:
    """How long each text of the batch is, so that layers need not compute padding."""

    def __init__(self) -> None:
        self.lengths: list[int] | None = None
        self.width = 0

    def look(self, model: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        from torch._subclasses.fake_tensor import FakeTensor

        mask = kwargs.get("attention_mask")
        self.width = kwargs["input_ids"].shape[1]
        self.lengths = None
        if mask is None or getattr(model.config, "is_encoder_decoder", False) or isinstance(mask, FakeTensor):
            return
        if bool((mask[:, 0] != 0).all()):  # padded on the right
            self.lengths = [int(n) for n in mask.sum(dim=1).tolist()]


class _SlicedForward:
    """A layer's forward, a few rows at a time."""

    def __init__(self, layer: nn.Module, forward: Callable[..., Any], rows: int, texts: _Texts) -> None:
        self.layer, self.forward, self.rows, self.texts = layer, forward, rows, texts

    def __call__(self, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not self.layer.training:
            return self.forward(hidden, *args, **kwargs)
        batch, width = hidden.shape[:2]
        pieces = []
        for start in range(0, batch, self.rows):
            cut = _Cut(start, min(start + self.rows, batch), batch, width, self._longest(start, batch, width))
            inputs = [cut(value) for value in (hidden, *args)], {key: cut(value) for key, value in kwargs.items()}
            pieces.append(self._run(*inputs))
        return _joined(pieces, min(self.rows, batch), width)

    def _longest(self, start: int, batch: int, width: int) -> int:
        lengths = self.texts.lengths
        if lengths is None or len(lengths) != batch or self.texts.width != width:
            return width
        return max(1, *lengths[start : start + self.rows])

    def _run(self, inputs: list[Any], settings: dict[str, Any]) -> Any:
        import torch
        from torch.utils.checkpoint import checkpoint

        if not torch.is_grad_enabled():
            return self.forward(*inputs, **settings)
        return checkpoint(partial(self.forward, **settings), *inputs, use_reentrant=False)


class _Cut:
    """Takes some rows, and of them the used tokens, out of whatever a layer is given."""

    def __init__(self, start: int, end: int, batch: int, width: int, longest: int) -> None:
        self.rows, self.batch, self.width, self.longest = slice(start, end), batch, width, longest

    def __call__(self, value: Any) -> Any:
        import torch

        if isinstance(value, (tuple, list)):
            return type(value)(self(inner) for inner in value)
        if not isinstance(value, torch.Tensor) or value.dim() < 2 or value.shape[0] not in (1, self.batch):
            return value
        if value.shape[0] == self.batch and self.batch > 1:
            value = value[self.rows]
        return self._trimmed(value)

    def _trimmed(self, value: torch.Tensor) -> torch.Tensor:
        """Tokens are the second dimension of states and positions, and the last two of masks."""
        if self.longest == self.width:
            return value
        tokens = (1,) if value.dim() <= 3 and value.shape[1:] != (self.width, self.width) else range(1, value.dim())
        for dim in tokens:
            if value.shape[dim] == self.width and not (value.dim() == 4 and dim == 1):
                value = value.narrow(dim, 0, self.longest)
        return value


def _joined(pieces: list[Any], rows: int, width: int) -> Any:
    """The pieces' outputs below each other, padded to one width; a layer may return more than its states."""
    import torch
    from torch.nn.functional import pad

    first = pieces[0]
    if isinstance(first, (tuple, list)):
        return type(first)(_joined(list(parts), rows, width) for parts in zip(*pieces, strict=True))
    if not isinstance(first, torch.Tensor) or first.shape[0] != rows:  # T5's position bias is one for all rows
        return first
    if first.dim() == 3:
        pieces = [
            pad(piece, (0, 0, 0, width - piece.shape[1])) if piece.shape[1] < width else piece for piece in pieces
        ]
    return torch.cat(pieces)
