"""Compute the loss of a language-model head a chunk of tokens at a time.

A language model predicts every token among all words it knows: 32,000 to 260,000 logits for each token, in fp32 and
several times over (the logits, their softmax, the gradients of both). For a small model that is most of the memory:
with 150,000 words, 2,048 tokens take 1.2 GB for each copy. Here the hidden states go through the head a few hundred
tokens at a time. The loss of a chunk and its gradients are computed together, in the memory of its logits, which is
freed before the next chunk. So the logits of a batch never exist at once, nothing is computed twice, and the result is
the same to rounding. Tokens without a label (padding, the prompt of an instruction, what a masked model sees) do not go
through the head at all, which saves time too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from tightfit.errors import RecipeError
from tightfit.messages import Message, msg
from tightfit.strategies.base import Case, Changes, MemoryKind, Result, Strategy
from tightfit.strategies.parts import Parts


@dataclass(frozen=True)
class ChunkedLoss(Strategy):
    """The cross-entropy of a language-model head in chunks of tokens."""

    name: ClassVar[str] = "chunked-loss"
    frees: ClassVar[tuple[MemoryKind, ...]] = (MemoryKind.ACTIVATIONS, MemoryKind.TEMPORARY)
    result: ClassVar[Result] = Result.SAME
    summary: ClassVar[Message] = msg(
        "computes a language model's loss a few hundred tokens at a time, so that not all logits exist at once"
    )
    changes: ClassVar[Changes] = Changes.GRADIENTS
    costs_nothing: ClassVar[bool] = True

    tokens: int = Field(default=256, ge=1)
    """Tokens whose logits exist at once."""

    @classmethod
    def offers(cls, case: Case) -> Sequence[Strategy]:
        return (cls(),) if case.predicts_words else ()

    def apply(self, parts: Parts) -> Parts:
        from torch import nn

        from tightfit.ops.chunked_loss import chunk_loss

        head = parts.model.get_output_embeddings()
        if head is None:
            raise RecipeError(
                msg(
                    "'{name}' is for language models, which predict words: {model} does not. Leave it out.",
                    name=self.name,
                    model=type(parts.model).__name__,
                )
            )
        if type(head) is not nn.Linear:
            raise RecipeError(
                msg(
                    "'{name}' cannot compute the head of {model}, a {kind}, in chunks: leave it out.",
                    name=self.name,
                    model=type(parts.model).__name__,
                    kind=type(head).__name__,
                )
            )
        chunk_loss(parts.model, head, self.tokens)
        return parts


ChunkedLoss.zh = {
    ChunkedLoss.summary: "语言模型的损失每次只计算几百个 token，不会同时保存全部 logits",
    "'{name}' is for language models, which predict words: {model} does not. Leave it out.": (
        "“{name}”用于预测词的语言模型，{model} 不是：请去掉它。"
    ),
    "'{name}' cannot compute the head of {model}, a {kind}, in chunks: leave it out.": (
        "“{name}”无法分块计算 {model} 的输出层（{kind}）：请去掉它。"
    ),
    "'chunked-loss' cannot be used here: it does not recognize how {model} computes its loss. Leave it out.": (
        "“chunked-loss”无法用于这个模型：它不认识 {model} 计算损失的方式。请去掉它。"
    ),
}
