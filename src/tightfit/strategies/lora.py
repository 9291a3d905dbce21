"""Train small matrices beside the weights instead of the weights themselves.

Of a weight matrix of 1024 x 1024 LoRA learns a correction that is the product of two thin ones, 1024 x 8 and 8 x 1024:
a hundredth of the numbers, and so of the gradients and the optimizer's memory. The weights themselves are
frozen; the new head is trained as a whole. Activations are still needed all the way down, so `checkpoint` or
`chunked-layers` goes well with it. When the training ends the product is added to the weights and the model is an
ordinary one; with `merge=false` the weights stay as they were and the correction lies beside them, as peft writes it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from tightfit.compat import checkpoint_name
from tightfit.errors import RecipeError
from tightfit.strategies.base import MemoryKind, Result, Strategy
from tightfit.strategies.parts import Parts
from tightfit.units import format_count

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_USUAL_RATE = 1e-4


@dataclass(frozen=True)
class Lora(Strategy):
    """Low-rank adaptation."""

    name: ClassVar[str] = "lora"
    frees: ClassVar[tuple[MemoryKind, ...]] = (MemoryKind.GRADIENTS, MemoryKind.OPTIMIZER_STATE)
    result: ClassVar[Result] = Result.DIFFERENT
    needs: ClassVar[str | None] = "peft"
    summary: ClassVar[str] = "trains small matrices beside the frozen weights (LoRA), added to them at the end"

    r: int = Field(default=8, ge=1)
    """The rank: how thin the matrices are."""
    alpha: float = Field(default=16, gt=0)
    """How strong the correction is; it is multiplied by alpha / r."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout in front of the small matrices."""
    targets: str = ""
    """Modules to adapt, such as query+key+value; found by architecture if not given."""
    merge: bool = True
    """Add what was learnt to the weights when the training ends."""

    def apply(self, parts: Parts) -> Parts:
        self.load()
        from peft import LoraConfig

        from tightfit.ops.lora import LoraAdapter, find_targets, uses_conv1d

        model = parts.model
        targets = self._named_targets(model) if self.targets else find_targets(model)
        if not targets or model.base_model is model:
            raise RecipeError(f"'{self.name}' finds no layers beneath a head in {type(model).__name__}: leave it out.")
        config = LoraConfig(
            r=self.r,
            lora_alpha=self.alpha,
            lora_dropout=self.dropout,
            target_modules=targets,
            fan_in_fan_out=uses_conv1d(model, targets),
            task_type="SEQ_CLS",
            base_model_name_or_path=checkpoint_name(model.config),
        )
        parts = replace(parts, adapter=LoraAdapter(model, config, merge=self.merge))
        return replace(parts, notes=(*parts.notes, *self._notes(parts, targets)))

    def _named_targets(self, model: PreTrainedModel) -> list[str]:
        names = [name.strip() for name in self.targets.split("+")]
        there = {name.rpartition(".")[2] for name, _ in model.named_modules()}
        for name in names:
            if name not in there:
                some = ", ".join(sorted(name for name in there if name and not name.isdigit())[:12])
                raise RecipeError(f"'{self.spec}': there is no module '{name}'; this model has {some}, …")
        return names

    def _notes(self, parts: Parts, targets: list[str]) -> list[str]:
        learns = f"{format_count(parts.trainable_parameters)} of {format_count(parts.parameters)} parameters"
        kinds = sorted({name.rpartition(".")[2] for name in targets})
        notes = [f"lora: rank {self.r} beside {', '.join(kinds)}; {learns} train"]
        if parts.learning_rate < _USUAL_RATE:
            notes.append(
                f"lora: usual learning rates are 1e-4 to 5e-4; with {parts.learning_rate:g} it will learn slowly"
            )
        return notes
