"""Keep what the backward pass needs in the memory of the machine, not of the card.

A forward pass keeps tensors for the backward pass, most of a training's memory. Each is copied to host memory as soon
as it is made, and fetched when the backward pass asks for it: the result is the same to the bit. The price is the way
there and back, some 12 GB a second. So it goes well with checkpoint or chunked-layers, which keep little: what is left
of them on the card is then next to nothing. It is for cards: a CPU has no second memory. Rehearsed, not yet run on one.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from tightfit.strategies.base import MemoryKind, Result, Strategy, require_cuda
from tightfit.strategies.parts import Parts


@dataclass(frozen=True)
class OffloadActivations(Strategy):
    """Activations wait in host memory."""

    name: ClassVar[str] = "offload-activations"
    frees: ClassVar[tuple[MemoryKind, ...]] = (MemoryKind.ACTIVATIONS,)
    result: ClassVar[Result] = Result.SAME
    summary: ClassVar[str] = "keeps what the backward pass needs in the machine's own memory, not on the card"
    cards_only: ClassVar[bool] = True
    gradients_only: ClassVar[bool] = True
    scales: ClassVar[bool] = False  # how large a tensor is decides where it waits

    smallest: int = Field(default=256, ge=0)
    """KiB that a tensor has at least to be sent there."""

    def apply(self, parts: Parts) -> Parts:
        require_cuda(self.name, parts.device)
        from tightfit.ops.offload import offload_saved_tensors

        offload_saved_tensors(parts.model, self.smallest << 10)
        return parts
