"""Compute in 16 bits, keep the weights in 32.

The forward and backward pass run in half the bytes where that is safe (matrix products), so activations
shrink; weights, gradients and optimizer state stay as they are. bf16 has the range of fp32 and needs nothing
else. fp16 has not: its gradients are scaled up so that small ones survive, and a step that overflows is
skipped. Fast on cards; on a CPU without bf16 instructions it saves memory and may cost time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass

from tightfit.device import Device
from tightfit.errors import RecipeError
from tightfit.strategies.base import MemoryKind, Result, Strategy
from tightfit.strategies.parts import Parts, Precision


@dataclass(frozen=True)
class MixedPrecision(Strategy):
    """Automatic mixed precision: bf16 where the device has it, else fp16 with gradient scaling."""

    name: ClassVar[str] = "mixed-precision"
    frees: ClassVar[tuple[MemoryKind, ...]] = (MemoryKind.ACTIVATIONS,)
    result: ClassVar[Result] = Result.CLOSE
    summary: ClassVar[str] = "computes in 16 bits (bf16, or fp16 with scaled gradients), weights stay in 32"
    exclusive: ClassVar[str | None] = "number format"
    gradients_only: ClassVar[bool] = True

    dtype: Literal["auto", "bf16", "fp16"] = "auto"
    """auto takes bf16 where the device has it."""

    def apply(self, parts: Parts) -> Parts:
        precision = self.choose(parts.device)
        note = f"mixed-precision: computing in {precision.value} on {parts.device.title}"
        return replace(parts, precision=precision, notes=(*parts.notes, note))

    def choose(self, device: Device) -> Precision:
        """The sixteen bits that a device has, of those that are wanted."""
        if self.dtype != "fp16" and device.bf16:
            return Precision.BF16
        if self.dtype != "bf16" and device.fp16:
            return Precision.FP16
        wanted = "bf16 nor fp16" if self.dtype == "auto" else self.dtype
        has = "neither" if self.dtype == "auto" else "no"
        raise RecipeError(f"'{self.spec}' cannot be used: {device.title} has {has} {wanted}. {self._way_out(device)}")

    def _way_out(self, device: Device) -> str:
        if self.dtype == "fp16" and device.bf16:
            return "Use mixed-precision:dtype=bf16."
        if self.dtype == "bf16" and device.fp16:
            return "Use mixed-precision:dtype=fp16."
        return "Leave it out."
