"""LoRA: train low-rank matrices beside the frozen weights instead of the weights themselves.

For a weight matrix of 1024 x 1024 LoRA trains a correction that is the product of two thin matrices, 1024 x 8 and
8 x 1024: a hundredth of the parameters, and so of the gradients and the optimizer state. The weights themselves are
frozen; a new head is trained completely. Activations are still needed in all layers, so it combines well with
gradient-checkpointing or chunked-layers. At the end of training the product is added to the weights and the model
is an ordinary one; with `merge=false` the weights stay unchanged and the adapter is saved beside them as peft does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from tightfit.compat import checkpoint_name
from tightfit.errors import RecipeError
from tightfit.messages import Message, msg
from tightfit.ops.lora_adapter import LoraAdapter, find_targets, is_language_model, uses_conv1d
from tightfit.strategies.base import Case, Changes, MemoryKind, Result, Stage, Strategy
from tightfit.strategies.parts import Parts, trained_weights
from tightfit.units import format_count

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from transformers import PreTrainedModel

_TYPICAL_LR = 1e-4


@dataclass(frozen=True)
class Lora(Strategy):
    """Low-rank adaptation."""

    name: ClassVar[str] = "lora"
    frees: ClassVar[tuple[MemoryKind, ...]] = (MemoryKind.GRADIENTS, MemoryKind.OPTIMIZER_STATE)
    result: ClassVar[Result] = Result.DIFFERENT
    requires: ClassVar[str | None] = "peft"
    changes: ClassVar[Changes] = Changes.MODEL
    summary: ClassVar[Message] = msg(
        "trains low-rank matrices beside the frozen weights (LoRA) and merges them at the end"
    )

    r: int = Field(default=8, ge=1)
    """The rank of the matrices."""
    alpha: float = Field(default=16, gt=0)
    """The scale of the correction, which is multiplied by alpha / r."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout before the low-rank matrices."""
    targets: str = ""
    """Modules to adapt, such as query+key+value; default: peft's target modules for the architecture."""
    use_rslora: bool = False
    """Scale by alpha / sqrt(r) instead of alpha / r, for large ranks (rsLoRA)."""
    use_dora: bool = False
    """Train the length of each column of a weight matrix besides (DoRA)."""
    merge: bool = True
    """Add the trained matrices to the weights at the end of training."""

    @classmethod
    def offers(cls, case: Case) -> Sequence[Strategy]:
        return (cls(),) if case.stage >= Stage.FEWER_PARAMETERS else ()

    def suits(self, others: Sequence[Strategy], case: Case) -> bool:
        """With nothing else that changes the result much, unless that needs it."""
        on_it = [other for other in others if other.needs == self.name]
        if case.stage is Stage.FEWER_BITS and not on_it:
            return False
        return all(other.result is not Result.DIFFERENT or other in on_it for other in others)

    def apply(self, parts: Parts) -> Parts:
        self.import_requirements()
        from peft import LoraConfig

        model = parts.model
        targets = self._named_targets(model) if self.targets else find_targets(model)
        if not targets or (model.base_model is model and not is_language_model(model)):
            kind = type(model).__name__
            raise RecipeError(
                msg("'{name}' finds no modules to adapt in {model}: leave it out.", name=self.name, model=kind)
            )
        config = LoraConfig(
            r=self.r,
            lora_alpha=self.alpha,
            lora_dropout=self.dropout,
            target_modules=targets,
            use_rslora=self.use_rslora,
            use_dora=self.use_dora,
            fan_in_fan_out=uses_conv1d(model, targets),
            task_type=parts.peft_type,
            base_model_name_or_path=checkpoint_name(model.config),
        )
        parts = replace(parts, export=LoraExport(LoraAdapter(model, config, merge=self.merge)))
        return replace(parts, notes=(*parts.notes, *self._notes(parts, targets)))

    def _named_targets(self, model: PreTrainedModel) -> list[str]:
        names = [name.strip() for name in self.targets.split("+")]
        available = {name.rpartition(".")[2] for name, _ in model.named_modules()}
        for name in names:
            if name not in available:
                some = ", ".join(sorted(name for name in available if name and not name.isdigit())[:12])
                raise RecipeError(
                    msg(
                        "'{spec}': there is no module '{module}'; this model has {some}, …",
                        spec=self.spec,
                        module=name,
                        some=some,
                    )
                )
        return names

    def _notes(self, parts: Parts, targets: list[str]) -> Iterator[Message]:
        yield msg(
            "lora: rank {rank} beside {modules}; {trained} of {all} parameters train",
            rank=self.r,
            modules=sorted({name.rpartition(".")[2] for name in targets}),
            trained=format_count(parts.trainable_parameters),
            all=format_count(parts.parameters),
        )
        if parts.learning_rate < _TYPICAL_LR:
            yield msg(
                "lora: usual learning rates are 1e-4 to 5e-4; with {rate:g} it will train slowly",
                rate=parts.learning_rate,
            )


class LoraExport:
    """Checkpoints hold the adapter and the head; the saved model has the adapter merged, or in files of its own."""

    saves_model = True

    def __init__(self, adapter: LoraAdapter) -> None:
        self.adapter = adapter

    def checkpoint_weights(self, model: PreTrainedModel) -> dict[str, torch.Tensor]:
        return trained_weights(model)

    def finish(self, folder: Path | None) -> None:
        if folder is not None and not self.adapter.merge:
            self.adapter.save(folder)
        self.adapter.merge_or_unload()


Lora.zh = {
    Lora.summary: "冻结原权重，训练旁路的低秩矩阵（LoRA），最后合并进权重",
    "'{name}' finds no modules to adapt in {model}: leave it out.": (
        "“{name}”在 {model} 中找不到可以适配的模块：请去掉它。"
    ),
    "'{spec}': there is no module '{module}'; this model has {some}, …": (
        "“{spec}”：没有“{module}”这个模块；这个模型有 {some} 等模块"
    ),
    "lora: rank {rank} beside {modules}; {trained} of {all} parameters train": (
        "lora：秩 {rank}，模块 {modules}；{trained} / {all} 个参数参与训练"
    ),
    "lora: usual learning rates are 1e-4 to 5e-4; with {rate:g} it will train slowly": (
        "lora：常用学习率为 1e-4 到 5e-4；用 {rate:g} 会训练得很慢"
    ),
}
