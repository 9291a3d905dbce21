"""Tiled attention: attention without stored matrices of tokens x tokens.

Every token attends to every other, which without fusion takes several matrices of tokens x tokens for every head of
every row: at 128 tokens a third of a layer's memory, at 512 most of it. On a GPU transformers already uses torch's
fused kernel, and on a CPU too if there is no dropout. With dropout on a CPU, this strategy uses tightfit's own
implementation, which works in the processor's cache and generates dropout masks faster (also outside attention).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic.dataclasses import dataclass

from tightfit.compat import can_change_attention
from tightfit.errors import RecipeError
from tightfit.messages import Message, msg
from tightfit.strategies.base import Case, Changes, MemoryKind, Result, Strategy
from tightfit.strategies.parts import Parts

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class TiledAttention(Strategy):
    """Fused attention on GPUs, tiled attention on CPUs."""

    name: ClassVar[str] = "tiled-attention"
    frees: ClassVar[tuple[MemoryKind, ...]] = (MemoryKind.ACTIVATIONS, MemoryKind.TEMPORARY)
    result: ClassVar[Result] = Result.SAME
    summary: ClassVar[Message] = msg(
        "computes attention in cache-sized tiles, with faster dropout (CPU), or with the fused kernel (GPU)"
    )
    changes: ClassVar[Changes] = Changes.GRADIENTS
    costs_nothing: ClassVar[bool] = True

    @classmethod
    def offers(cls, case: Case) -> Sequence[Strategy]:
        """For CPUs: GPUs have their own memory-efficient kernels."""
        return (cls(),) if case.device.kind == "cpu" else ()

    def apply(self, parts: Parts) -> Parts:
        if not can_change_attention(parts.model):
            raise RecipeError(
                msg(
                    "'{name}' finds no attention in {model} that can be replaced: leave it out.",
                    name=self.name,
                    model=type(parts.model).__name__,
                )
            )
        if parts.device.kind != "cpu":
            parts.model.set_attn_implementation("sdpa")
            return parts
        from tightfit.ops.attention import register

        parts.model.set_attn_implementation(register())
        _use_fast_dropout(parts.model)
        return parts


def _use_fast_dropout(model: torch.nn.Module) -> None:
    from torch.nn import Dropout

    for module in model.modules():
        if type(module) is Dropout:
            module.forward = partial(_dropout, module)


def _dropout(module: Any, values: torch.Tensor) -> torch.Tensor:
    from tightfit.ops.dropout import dropout

    return dropout(values, module.p) if module.training and 0 < module.p < 1 else values


TiledAttention.zh = {
    TiledAttention.summary: "CPU 上按缓存大小分块计算注意力，dropout 也更快；GPU 上用 fused kernel（融合算子）",
    "'{name}' finds no attention in {model} that can be replaced: leave it out.": (
        "“{name}”在 {model} 中找不到可以替换的注意力：请去掉它。"
    ),
}
