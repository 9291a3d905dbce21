"""Join the rows of a micro-batch into one row without padding.

A batch is padded to its longest row, and padding is computed and stored like text: of chats of many lengths often half.
Packed, the rows stand one after the other in one long row. Positions start again with each of them, and no token
attends to another row, so every token has the same logits as before, and the loss is the same to rounding. Only rows of
one effective batch are packed, so steps, schedule and results do not change. Attention is computed for the whole row
and hidden where it crosses rows: with very many tokens in a micro-batch that takes more time than the padding did.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic.dataclasses import dataclass

from tightfit.errors import RecipeError
from tightfit.messages import Message, msg
from tightfit.strategies.base import Changes, MemoryKind, Result, Strategy, TraceHints
from tightfit.strategies.parts import Parts


@dataclass(frozen=True)
class Packing(Strategy):
    """Rows of a micro-batch in one row, kept apart."""

    name: ClassVar[str] = "packing"
    frees: ClassVar[tuple[MemoryKind, ...]] = (MemoryKind.ACTIVATIONS,)
    result: ClassVar[Result] = Result.SAME
    summary: ClassVar[Message] = msg(
        "joins the rows of a micro-batch into one row without padding; attention does not cross rows (causal models)"
    )
    changes: ClassVar[Changes] = Changes.GRADIENTS

    @property
    def hints(self) -> TraceHints:
        return TraceHints(same_ops_at_any_size=False)

    def apply(self, parts: Parts) -> Parts:
        from tightfit.ops.packing import keeps_rows_apart, pack_rows

        if not keeps_rows_apart(parts.model):
            raise RecipeError(
                msg(
                    "'{name}' is for causal language models that keep packed rows apart: {model} does not. Leave it "
                    "out.",
                    name=self.name,
                    model=type(parts.model).__name__,
                )
            )
        pack_rows(parts.model)
        return parts


Packing.zh = {
    Packing.summary: "把一个微批次的样本拼成一条不含填充的序列，样本之间注意力互相屏蔽（因果语言模型）",
    "'{name}' is for causal language models that keep packed rows apart: {model} does not. Leave it out.": (
        "“{name}”用于能让拼接的各行互不可见的因果语言模型，{model} 不是：请去掉它。"
    ),
}
