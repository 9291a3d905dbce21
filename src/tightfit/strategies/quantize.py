"""Frozen weights in 4 or 8 bits, as in QLoRA.

LoRA trains small matrices beside the weights, which stay as they are: in fp32 those of a language model with a billion
parameters take 4 GB. They are only read, so they can be stored in 4 bits (NF4: 16 values, spaced as weights are
distributed, with a scale for every 64 of them) or in 8 (int8, with a scale for every row), and each matrix is expanded
to 16 bits while it is multiplied. Adapter, head and optimizer stay in fp32; embeddings and norms are in 16 bits.
The arithmetic is bitsandbytes', an optional package: pip install bitsandbytes. What is saved is the adapter, in peft's
format: it goes with the base model, quantized or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic.dataclasses import dataclass

from tightfit.device import Device
from tightfit.errors import RecipeError
from tightfit.messages import Message, msg
from tightfit.models import Loading, layer_stacks
from tightfit.ops.fake import real_tensors
from tightfit.strategies.base import Case, Changes, MemoryKind, Result, Stage, Strategy
from tightfit.strategies.lora import Lora, LoraExport
from tightfit.strategies.parts import Parts, Precision, trained_weights

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from transformers import PreTrainedModel

    from tightfit.ops.lora_adapter import LoraAdapter


@dataclass(frozen=True)
class Quantize(Strategy):
    """The frozen linear layers in NF4 or int8, by bitsandbytes."""

    name: ClassVar[str] = "quantize"
    frees: ClassVar[tuple[MemoryKind, ...]] = (MemoryKind.WEIGHTS,)
    result: ClassVar[Result] = Result.DIFFERENT
    requires: ClassVar[str | None] = "bitsandbytes"
    needs: ClassVar[str | None] = Lora.name
    exclusive: ClassVar[str | None] = "number format"
    changes: ClassVar[Changes] = Changes.MODEL
    summary: ClassVar[Message] = msg(
        "stores the frozen weights in 4 or 8 bits and computes in 16 (QLoRA; needs lora and the package bitsandbytes)"
    )

    bits: Literal["4", "8"] = "4"
    """4 is NF4, 8 is int8."""
    dtype: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """The format of products and other frozen weights; auto is bf16, else fp16 on GPUs and fp32 on CPUs."""

    @classmethod
    def offers(cls, case: Case) -> Sequence[Strategy]:
        return (cls(),) if case.stage is Stage.FEWER_BITS else ()

    def suits(self, others: Sequence[Strategy], case: Case) -> bool:
        return any(other.name == self.needs for other in others)

    def load(self, loading: Loading) -> Loading:
        return loading if self.dtype == "fp32" else replace(loading, dtype="bfloat16")

    def apply(self, parts: Parts) -> Parts:
        if not self.is_available():
            raise RecipeError(
                msg(
                    "'{name}' needs the package {package}: pip install tightfit[8bit].",
                    name=self.name,
                    package=self.requires,
                )
            )
        with real_tensors():  # a library's own constants are not part of a simulation
            self.import_requirements()
        precision = self.choose(parts.device)
        self._quantize(parts.model, precision)
        if isinstance(parts.export, LoraExport):
            parts = replace(parts, export=SavedAdapter(parts.export.adapter))
        note = msg(
            "quantize: frozen weights in {bits} bits, products in {dtype}; the adapter is saved, not a merged model",
            bits=self.bits,
            dtype=precision.dtype,
        )
        return replace(parts, precision=precision, notes=(*parts.notes, note))

    def _quantize(self, model: PreTrainedModel, precision: Precision) -> None:
        import torch

        from tightfit.ops.quantized_linear import quantize_linear_layers

        if any("lora_magnitude_vector" in name for name, _ in model.named_parameters()):
            raise RecipeError(msg("'{name}' cannot be used with lora:use_dora=true. Leave one out.", name=self.name))
        dtype = getattr(torch, precision.dtype)
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(torch.float32 if parameter.requires_grad else dtype)
        layers = [layer for stack in layer_stacks(model) for layer in stack]
        if not quantize_linear_layers(layers, int(self.bits), dtype):
            kind = type(model).__name__
            raise RecipeError(
                msg("'{name}' finds no linear layers to quantize in {model}: leave it out.", name=self.name, model=kind)
            )

    def choose(self, device: Device) -> Precision:
        """The format to compute in on a device; RecipeError if it does not have the one that is asked for."""
        if self.dtype in ("auto", "bf16") and device.bf16 and (device.bf16_products or self.dtype == "bf16"):
            return Precision.BF16
        if self.dtype in ("auto", "fp16") and device.fp16:
            return Precision.FP16
        if self.dtype in ("auto", "fp32"):
            return Precision.FP32
        raise RecipeError(
            msg(
                "'{spec}' cannot be used: {device} has no {dtype}. Use quantize:dtype=fp32.",
                spec=self.spec,
                device=device.label,
                dtype=self.dtype,
            )
        )


class SavedAdapter:
    """Checkpoints and the saved model hold the adapter and the head; the base model stays where it is."""

    saves_model = False

    def __init__(self, adapter: LoraAdapter) -> None:
        self.adapter = adapter

    def checkpoint_weights(self, model: PreTrainedModel) -> dict[str, torch.Tensor]:
        return trained_weights(model)

    def finish(self, folder: Path | None) -> None:
        if folder is not None:
            self.adapter.save(folder)


Quantize.zh = {
    Quantize.summary: "冻结的权重用 4 位或 8 位存储，用 16 位计算（QLoRA，需要 lora 和 bitsandbytes）",
    "'{name}' needs the package {package}: pip install tightfit[8bit].": (
        "“{name}”需要安装 {package}：pip install tightfit[8bit]。"
    ),
    "quantize: frozen weights in {bits} bits, products in {dtype}; the adapter is saved, not a merged model": (
        "quantize：冻结的权重用 {bits} 位存储，用 {dtype} 计算；保存的是 adapter，不是合并后的模型"
    ),
    "'{name}' cannot be used with lora:use_dora=true. Leave one out.": (
        "“{name}”不能与 lora:use_dora=true 一起使用。请去掉一个。"
    ),
    "'{name}' finds no linear layers to quantize in {model}: leave it out.": (
        "“{name}”在 {model} 中找不到可以量化的线性层：请去掉它。"
    ),
    "'{spec}' cannot be used: {device} has no {dtype}. Use quantize:dtype=fp32.": (
        "“{spec}”无法使用：{device} 不支持 {dtype}。请用 quantize:dtype=fp32。"
    ),
}
