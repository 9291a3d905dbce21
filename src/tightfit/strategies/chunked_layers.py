"""Run each layer on a few rows at a time, in the forward pass and when the backward pass recomputes it.

Micro-batches of the whole model need a backward pass each, and gradients that stay in memory until the last one. Here
the whole batch goes through the model once, layer by layer, and is split into chunks only inside a layer. Every chunk
is checkpointed: its activations are dropped and recomputed in the backward pass, one chunk after the other. So a batch
of any size needs the activations of a single chunk, there is one backward pass, and each gradient is complete when its
layer is done. Rows are sorted by length and split where the least padding is left, which often makes up for the time
of the recomputation.

What remains are the hidden states between layers, which are stored for the whole batch. With `layers=2` a chunk goes
through two layers before the next one starts: half as many hidden states, no more computation, and the activations and
gradients of two layers at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from tightfit.data.micro_batches import RowLimits
from tightfit.errors import RecipeError
from tightfit.messages import Message, msg
from tightfit.models import layer_stacks
from tightfit.strategies.base import Case, Changes, MemoryKind, Result, Stage, Strategy, TraceHints
from tightfit.strategies.parts import Parts

_CHUNKS, _MOST_CHUNKS = 4, 16  # a quarter of the batch, or the smallest chunk that still saves memory


@dataclass(frozen=True)
class ChunkedLayers(Strategy):
    """Gradient checkpointing by layer and by chunk of the batch."""

    name: ClassVar[str] = "chunked-layers"
    frees: ClassVar[tuple[MemoryKind, ...]] = (MemoryKind.ACTIVATIONS,)
    result: ClassVar[Result] = Result.SAME
    summary: ClassVar[Message] = msg(
        "runs each layer in chunks of a few rows, with recomputation; unlike micro-batch, one backward pass per batch"
    )
    exclusive: ClassVar[str | None] = "recomputation"
    changes: ClassVar[Changes] = Changes.GRADIENTS

    size: int = Field(ge=1)
    """Rows per chunk; more where they are shorter than the longest."""
    layers: int = Field(default=1, ge=1)
    """Layers that a chunk goes through before the next one starts."""

    @property
    def hints(self) -> TraceHints:
        return TraceHints(same_ops_at_any_size=False, layer_period=self.layers, layers_per_block=self.layers)

    @classmethod
    def offers(cls, case: Case) -> Sequence[Strategy]:
        """Large chunks; as a last resort small ones, and two layers at a time, which halves the hidden states."""
        large, small = (max(1, case.batch_size // chunks) for chunks in (_CHUNKS, _MOST_CHUNKS))
        if case.stage is Stage.USUAL:
            return (cls(size=large),)
        if case.stage is Stage.SMALL:
            size = large if case.device.kind == "cpu" else small
            return cls(size=size), cls(size=size, layers=2)
        return (cls(size=small), cls(size=small, layers=2)) if case.stage is Stage.SMALLEST else ()

    def suits(self, others: Sequence[Strategy], case: Case) -> bool:
        """Micro-batches do as much for less, unless a step needs a single backward pass."""
        return any(other.steps_in_backward for other in others)

    def apply(self, parts: Parts) -> Parts:
        stacks = layer_stacks(parts.model)
        if not stacks:
            model = type(parts.model).__name__
            raise RecipeError(
                msg("'{name}' finds no layers in {model}: use micro-batch instead.", name=self.name, model=model)
            )
        from tightfit.ops.chunked_layer import chunk_layers

        limits = RowLimits(self.size, where="layers")
        chunk_layers(parts.model, stacks, limits, self.layers, parts.device.kind)
        batching = replace(parts.batching, chunk_rows=min(self.size, parts.batching.batch_size))
        # Where a frozen encoder runs before training, its chunks are not part of the steps.
        return replace(parts, batching=batching, shrinkable=(limits,) if parts.source.runs_encoder else ())


ChunkedLayers.zh = {
    ChunkedLayers.summary: (
        "每层都把批次分成小块（每块几条样本）依次计算，反向传播时重新计算；与微批次不同，每个批次只做一次反向传播"
    ),
    "'{name}' finds no layers in {model}: use micro-batch instead.": (
        "“{name}”在 {model} 中找不到层：请改用 micro-batch。"
    ),
    "'chunked-layers' cannot be used here: the model changes the hidden states between its layers. Use "
    "micro-batch instead.": "“chunked-layers”无法用于这个模型：它在层与层之间修改隐藏状态。请改用 micro-batch。",
    "'chunked-layers' cannot run several layers together: a {layer} returns more than its hidden states. "
    "Use layers=1.": "“chunked-layers”无法同时计算多层：{layer} 除隐藏状态外还返回其他值。请用 layers=1。",
    "'chunked-layers' cannot run several layers together: a {layer} gets other arguments than the layer "
    "before it. Use layers=1.": "“chunked-layers”无法同时计算多层：{layer} 与前一层的参数不同。请用 layers=1。",
}
