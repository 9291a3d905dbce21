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
from tightfit.messages import Message, msg
from tightfit.strategies.base import Case, Changes, MemoryKind, Result, Stage, Strategy
from tightfit.strategies.parts import Parts, Precision


@dataclass(frozen=True)
class MixedPrecision(Strategy):
    """Automatic mixed precision: bf16 where the device supports it, else fp16 with gradient scaling."""

    name: ClassVar[str] = "mixed-precision"
    frees: ClassVar[tuple[MemoryKind, ...]] = (MemoryKind.ACTIVATIONS,)
    result: ClassVar[Result] = Result.CLOSE
    summary: ClassVar[Message] = msg(
        "computes in 16 bits (bf16, or fp16 with gradient scaling) and keeps the weights in fp32"
    )
    exclusive: ClassVar[str | None] = "number format"
    changes: ClassVar[Changes] = Changes.GRADIENTS

    dtype: Literal["auto", "bf16", "fp16"] = "auto"
    """auto is bf16 where the device supports it, else fp16."""

    @classmethod
    def offers(cls, case: Case) -> Sequence[Strategy]:
        """On GPUs, and on CPUs with instructions for it: others are slower with it."""
        return (cls(),) if case.device.bf16_products and case.stage < Stage.FEWER_PARAMETERS else ()

    @classmethod
    def why_not_offered(cls, device: Device) -> Message | None:
        if device.bf16_products:
            return None
        return msg("this CPU computes no faster in 16 bits; add --use {name} to try it", name=cls.name)

    def apply(self, parts: Parts) -> Parts:
        precision = self.choose(parts.device)
        dtype, device = precision.value, parts.device.label
        note = msg("mixed-precision: computing in {dtype} on {device}", dtype=dtype, device=device)
        if parts.device.kind == "cpu" and precision is Precision.BF16:
            from tightfit.ops.bf16_products import use_bf16_products

            use_bf16_products(parts.model)
        return replace(parts, precision=precision, notes=(*parts.notes, note))

    def choose(self, device: Device) -> Precision:
        """The 16-bit format to use on a device; RecipeError if it has none that the setting allows."""
        if self.dtype != "fp16" and device.bf16:
            return Precision.BF16
        if self.dtype != "bf16" and device.fp16:
            return Precision.FP16
        raise RecipeError(self._missing(device))

    def _missing(self, device: Device) -> Message:
        values = {"spec": self.spec, "device": device.label, "suggestion": self._suggestion(device)}
        if self.dtype == "auto":
            return msg("'{spec}' cannot be used: {device} has neither bf16 nor fp16. {suggestion}", **values)
        return msg("'{spec}' cannot be used: {device} has no {dtype}. {suggestion}", **values, dtype=self.dtype)

    def _suggestion(self, device: Device) -> Message:
        if self.dtype == "fp16" and device.bf16:
            return msg("Use mixed-precision:dtype={dtype}.", dtype="bf16")
        if self.dtype == "bf16" and device.fp16:
            return msg("Use mixed-precision:dtype={dtype}.", dtype="fp16")
        return msg("Leave it out.")


MixedPrecision.zh = {
    MixedPrecision.summary: "用 16 位精度计算（bf16，或配合 loss scaling 的 fp16），权重仍为 fp32",
    "this CPU computes no faster in 16 bits; add --use {name} to try it": (
        "这个 CPU 用 16 位计算并不更快；要尝试请加 --use {name}"
    ),
    "mixed-precision: computing in {dtype} on {device}": "mixed-precision：在 {device} 上用 {dtype} 计算",
    "'{spec}' cannot be used: {device} has neither bf16 nor fp16. {suggestion}": (
        "“{spec}”无法使用：{device} 既不支持 bf16，也不支持 fp16。{suggestion}"
    ),
    "'{spec}' cannot be used: {device} has no {dtype}. {suggestion}": (
        "“{spec}”无法使用：{device} 不支持 {dtype}。{suggestion}"
    ),
    "Use mixed-precision:dtype={dtype}.": "请用 mixed-precision:dtype={dtype}。",
}
