"""Attention that never holds a matrix of tokens x tokens.

Every token looks at every other, which plainly done makes several matrices of tokens x tokens for every head of every
text: at 128 tokens a third of a layer's memory, at 512 most of it. On a card transformers already takes torch's fused
kernel, and so it does on a CPU where there is no dropout. With dropout a CPU gets tightfit's own, which works in the
processor's cache and draws dropout faster (also outside attention).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic.dataclasses import dataclass

from tightfit.compat import can_change_attention
from tightfit.errors import RecipeError
from tightfit.strategies.base import MemoryKind, Result, Strategy
from tightfit.strategies.parts import Parts

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Attention(Strategy):
    """Fused on cards, tiled on CPUs."""

    name: ClassVar[str] = "tiled-attention"
    frees: ClassVar[tuple[MemoryKind, ...]] = (MemoryKind.ACTIVATIONS, MemoryKind.TEMPORARY)
    result: ClassVar[Result] = Result.SAME
    summary: ClassVar[str] = (
        "computes attention in tiles that fit the cache (CPU) or fused (cards), and draws dropout faster on a CPU"
    )
    gradients_only: ClassVar[bool] = True

    def apply(self, parts: Parts) -> Parts:
        if not can_change_attention(parts.model):
            raise RecipeError(
                f"'{self.name}' finds no attention in {type(parts.model).__name__} that can be changed: leave it out."
            )
        if parts.device.kind != "cpu":
            parts.model.set_attn_implementation("sdpa")
            return parts
        from tightfit.ops.attention import register

        parts.model.set_attn_implementation(register())
        _draw_dropout_faster(parts.model)
        return parts


def _draw_dropout_faster(model: torch.nn.Module) -> None:
    from torch.nn import Dropout

    for module in model.modules():
        if type(module) is Dropout:
            module.forward = partial(_dropped, module)


def _dropped(module: Any, values: torch.Tensor) -> torch.Tensor:
    from tightfit.ops.dropout import dropout

    return dropout(values, module.p) if module.training and 0 < module.p < 1 else values
