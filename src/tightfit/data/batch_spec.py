"""Batch spec: the fields of a collated batch, and how their sizes follow from its rows and tokens.

It is learned from two batches that a collator made, so a simulation can make batches of any size for any collator: it
need not know what a task or a user's own collator puts into them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tightfit.errors import DataError
from tightfit.messages import msg

if TYPE_CHECKING:
    import torch

    from tightfit.data.batches import Batch

ROWS, TOKENS, TARGETS = "rows", "tokens", "targets"
_IDS, _MASK = "input_ids", "attention_mask"


@dataclass(frozen=True)
class Field:
    """One tensor of a batch."""

    name: str
    dtype: str
    """As torch names it."""
    sides: tuple[str | int, ...]
    """The size of each dimension: that of an axis (rows, tokens, targets) or a constant."""
    fill: float = 1
    """A value that occurs in it."""

    def make(self, sizes: Mapping[str, int]) -> torch.Tensor:
        """A tensor of this field, filled with one value."""
        import torch

        shape = [sizes[side] if isinstance(side, str) else side for side in self.sides]
        return torch.full(shape, self.fill, dtype=getattr(torch, self.dtype))


@dataclass(frozen=True)
class BatchSpec:
    """The fields of a batch."""

    fields: tuple[Field, ...]
    targets: int = 0
    """The length of the targets of an encoder-decoder, where they are another axis than the tokens."""

    @classmethod
    def of(cls, first: Mapping[str, Any], second: Mapping[str, Any]) -> BatchSpec:
        """Learn it from two batches that differ in rows and tokens."""
        axes = _axes(first, second)
        fields = tuple(_field(name, value, second[name], axes) for name, value in first.items() if _is_tensor(value))
        return cls(fields, max(axes.get(TARGETS, (0, 0))))

    def make(self, rows: int, tokens: int, *names: str, token: int = 0, end_token: int = 1) -> Batch:
        """A batch of this size, or only the fields that are named.

        Every row consists of `token` and ends in one `end_token`: some heads read the hidden state at it. There is
        padding, although a real batch of equal lengths has none: then transformers drops the mask, which saves little,
        and a recipe would have one prediction with its mask and one without.
        """
        import torch

        sizes = {ROWS: rows, TOKENS: tokens, TARGETS: self.targets}
        fields = [replace(field, fill=token) if field.name == _IDS else field for field in self.fields]
        chosen = [field for field in fields if not names or field.name in names]
        batch = {field.name: field.make(sizes) for field in chosen if field.name != _MASK}
        if _IDS in batch:
            batch[_IDS][:, -1] = end_token
        if any(field.name == _MASK for field in chosen):
            batch[_MASK] = torch.ones_like(batch[_IDS])
            batch[_MASK][-1, -1] = 0
        return batch


def text_batch(labels: str = "int64") -> BatchSpec:
    """Tokens and one label per row, of this dtype."""
    tokens = (ROWS, TOKENS)
    return BatchSpec((Field(_IDS, "int64", tokens), Field("labels", labels, (ROWS,)), Field(_MASK, "int64", tokens)))


def _axes(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """The sizes of the axes in both batches; images and the like have no tokens."""
    tensors = [name for name, value in first.items() if _is_tensor(value) and value.dim()]
    if not tensors:
        raise DataError(msg("The collator's batches have no tensors with rows: there is nothing to simulate."))
    axes = {ROWS: (len(first[tensors[0]]), len(second[tensors[0]]))}
    if _IDS not in first or first[_IDS].dim() != 2:
        return axes
    axes[TOKENS] = first[_IDS].shape[1], second[_IDS].shape[1]
    labels = first.get("labels"), second.get("labels")
    widths = tuple(each.shape[1] for each in labels if each is not None and each.dim() > 1)
    if len(widths) == len(labels) and widths != axes[TOKENS] and len(set(widths)) > 1:
        axes[TARGETS] = widths  # the labels of an encoder-decoder
    return axes


def _field(name: str, first: torch.Tensor, second: torch.Tensor, axes: Mapping[str, tuple[int, int]]) -> Field:
    if first.dim() != second.dim():
        raise DataError(
            msg(
                "The collator's '{field}' has {first} dimensions in one batch and {second} in another.",
                field=name,
                first=first.dim(),
                second=second.dim(),
            )
        )
    sides = tuple(_side(name, pair, axes) for pair in zip(first.shape, second.shape, strict=True))
    return Field(
        name, str(first.dtype).removeprefix("torch."), sides, first.flatten()[0].item() if first.numel() else 0
    )


def _side(name: str, sizes: tuple[int, int], axes: Mapping[str, tuple[int, int]]) -> str | int:
    axis = next((axis for axis, found in axes.items() if found == sizes), None)
    if axis is not None:
        return axis
    if sizes[0] != sizes[1]:
        raise DataError(
            msg(
                "The sizes {first} and {second} of the collator's '{field}' follow from no other field's.",
                first=sizes[0],
                second=sizes[1],
                field=name,
            )
        )
    return sizes[0]


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "dim") and hasattr(value, "dtype")
