"""Mixed precision: compute in 16 bits, keep the weights in fp32.

The forward and backward pass run in 16 bits where that is safe (matrix products), so activations take less memory;
weights, gradients and optimizer state stay as they are. bf16 has the range of fp32 and needs nothing else. fp16 has a
smaller range: gradients are scaled up so that small ones are not lost, and a step that overflows is skipped. It is fast
on GPUs; on a CPU without bf16 instructions it saves memory and may cost time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass

from tightfit.device import Device
from tightfit.errors import RecipeError
from tightfit.strategies.base import Case, Changes, MemoryKind, Result, Stage, Strategy
from tightfit.strategies.parts import Parts, Precision


@dataclass(frozen=True)
class MixedPrecision(Strategy):
    """Automatic mixed precision: bf16 where the device supports it, else fp16 with gradient scaling."""

    name: ClassVar[str] = "mixed-precision"
    frees: ClassVar[tuple[MemoryKind, ...]] = (MemoryKind.ACTIVATIONS,)
    result: ClassVar[Result] = Result.CLOSE
    summary: ClassVar[str] = "computes in 16 bits (bf16, or fp16 with gradient scaling) and keeps the weights in fp32"
    exclusive: ClassVar[str | None] = "number format"
    changes: ClassVar[Changes] = Changes.GRADIENTS

    dtype: Literal["auto", "bf16", "fp16"] = "auto"
    """auto is bf16 where the device supports it, else fp16."""

    @classmethod
    def offers(cls, case: Case) -> Sequence[Strategy]:
        """Only on GPUs: a CPU without 16-bit instructions is slower with it."""
        return (cls(),) if case.device.kind != "cpu" and case.stage < Stage.FEWER_PARAMETERS else ()

    @classmethod
    def why_not_offered(cls, device: Device) -> str | None:
        if device.kind != "cpu":
            return None
        return f"a CPU computes no faster in 16 bits; add --use {cls.name} to try it"

    def apply(self, parts: Parts) -> Parts:
        precision = self.choose(parts.device)
        note = f"mixed-precision: computing in {precision.value} on {parts.device.label}"
        return replace(parts, precision=precision, notes=(*parts.notes, note))

    def choose(self, device: Device) -> Precision:
        """The 16-bit format to use on a device; RecipeError if it has none that the setting allows."""
        if self.dtype != "fp16" and device.bf16:
            return Precision.BF16
        if self.dtype != "bf16" and device.fp16:
            return Precision.FP16
        missing = "neither bf16 nor fp16" if self.dtype == "auto" else f"no {self.dtype}"
        raise RecipeError(f"'{self.spec}' cannot be used: {device.label} has {missing}. {self._suggestion(device)}")

    def _suggestion(self, device: Device) -> str:
        if self.dtype == "fp16" and device.bf16:
            return "Use mixed-precision:dtype=bf16."
        if self.dtype == "bf16" and device.fp16:
            return "Use mixed-precision:dtype=fp16."
        return "Leave it out."
