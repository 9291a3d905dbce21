"""Offload activations: keep the tensors saved for the backward pass in host memory instead of GPU memory.

A forward pass saves tensors for the backward pass, most of the memory of training. Each is copied to host memory as
soon as it is computed, and copied back when the backward pass needs it: the result is bit-identical. The cost is the
transfer in both directions, some 12 GB a second. So it combines well with gradient-checkpointing or chunked-layers,
which save few tensors. It is for GPUs only: on a CPU there is no separate host memory. It has been simulated, not yet
run on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from tightfit.messages import Message, msg
from tightfit.strategies.base import Case, Changes, MemoryKind, Result, Stage, Strategy, TraceHints, require_cuda
from tightfit.strategies.chunked_layers import ChunkedLayers
from tightfit.strategies.offload_optimizer import OffloadOptimizer
from tightfit.strategies.parts import Parts


@dataclass(frozen=True)
class OffloadActivations(Strategy):
    """Saved activations in host memory until the backward pass."""

    name: ClassVar[str] = "offload-activations"
    frees: ClassVar[tuple[MemoryKind, ...]] = (MemoryKind.ACTIVATIONS,)
    result: ClassVar[Result] = Result.SAME
    summary: ClassVar[Message] = msg(
        "keeps activations in host memory instead of GPU memory until the backward pass needs them"
    )
    changes: ClassVar[Changes] = Changes.GRADIENTS

    smallest: int = Field(default=256, ge=0)
    """KiB of the smallest tensor that is offloaded."""

    @property
    def hints(self) -> TraceHints:
        return TraceHints(same_ops_at_any_size=False)  # only tensors above a size are offloaded

    @classmethod
    def offers(cls, case: Case) -> Sequence[Strategy]:
        return (cls(),) if case.device.kind == "cuda" and case.stage is Stage.SMALLEST else ()

    def suits(self, others: Sequence[Strategy], case: Case) -> bool:
        """With the optimizer offloaded too, and with chunks of one layer, which leave the least on the GPU."""
        offloaded = any(isinstance(other, OffloadOptimizer) for other in others)
        return offloaded and any(isinstance(other, ChunkedLayers) and other.layers == 1 for other in others)

    def apply(self, parts: Parts) -> Parts:
        require_cuda(self.name, parts.device)
        from tightfit.ops.offload import offload_saved_tensors

        offload_saved_tensors(parts.model, self.smallest << 10)
        return parts


OffloadActivations.zh = {
    OffloadActivations.summary: "把激活值卸载（offload）到主机内存，反向传播用到时再取回，不占显存",
}
