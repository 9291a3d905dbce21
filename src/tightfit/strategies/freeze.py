"""Leave a part of the model as it was pretrained.

A frozen parameter has no gradient and no optimizer state, and layers below the lowest trained one keep no
activations. What is frozen does not learn, so the model that comes out is a different one. Freezing the first
layers takes the embeddings along, because while they learn the backward pass has to go through the frozen
layers all the same.

Where nothing but the head learns, what lies below says the same of a text in every epoch. So it runs once over each
text, in batches of like length, and the head learns from what was kept of it: a few kilobytes a text, in a
file. The second epoch costs next to nothing. A frozen part that runs in every step, as it does with `cache=false`,
says something slightly different each time because of its dropout; what is kept was said without dropout.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatch
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from tightfit.errors import RecipeError
from tightfit.models import embedding_modules, layer_stacks
from tightfit.strategies.base import MemoryKind, Result, Strategy
from tightfit.strategies.parts import Parts
from tightfit.units import format_count

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

    from tightfit.ops.feature_cache import FeatureCache


@dataclass(frozen=True)
class Freeze(Strategy):
    """Freeze the encoder, its first layers, the embeddings or parameters by name."""

    name: ClassVar[str] = "freeze"
    frees: ClassVar[tuple[MemoryKind, ...]] = (MemoryKind.GRADIENTS, MemoryKind.OPTIMIZER_STATE, MemoryKind.ACTIVATIONS)
    result: ClassVar[Result] = Result.DIFFERENT
    summary: ClassVar[str] = "leaves the encoder, its first layers, the embeddings or named parameters untrained"

    encoder: bool | None = None
    """Everything but the new head; also what plain `freeze` means."""
    layers: int = Field(default=0, ge=0)
    """The first k layers, with the embeddings below them."""
    embeddings: bool | None = None
    """The embeddings alone, or with `layers` whether they go along."""
    pattern: str = ""
    """Parameters whose name matches, such as *.attention.*"""
    cache: bool = True
    """Run what lies below the head once over each text, where nothing of it learns."""

    @property
    def period(self) -> int | None:
        return None if self.layers or self.pattern else 1

    def apply(self, parts: Parts) -> Parts:
        if parts.adapter and not (self.layers or self.embeddings or self.pattern):
            raise RecipeError(f"'{self.spec}' and 'lora' clash: what lora trains lies in the frozen part. Keep one.")
        frozen = freeze(
            parts.model,
            encoder=self.encoder,
            layers=self.layers,
            embeddings=self.embeddings,
            pattern=self.pattern,
        )
        feature_cache = self._trunk(parts.model)
        kept = (
            "; it runs once over each text, without dropout, and the head learns from what it said"
            if feature_cache
            else ""
        )
        return replace(parts, feature_cache=feature_cache, notes=(*parts.notes, f"freeze: {frozen}{kept}"))

    def _trunk(self, model: PreTrainedModel) -> FeatureCache | None:
        """None where a part of it learns, or where the head reads it in a way that cannot be kept."""
        from tightfit.ops.feature_cache import find_cacheable_encoder

        learns = any(parameter.requires_grad for parameter in model.base_model.parameters())
        return find_cacheable_encoder(model) if self.cache and model.base_model is not model and not learns else None


def freeze(
    model: PreTrainedModel,
    *,
    encoder: bool | None = None,
    layers: int = 0,
    embeddings: bool | None = None,
    pattern: str = "",
) -> str:
    """Freeze parts of a model in place and say what is frozen and how much still trains."""
    nothing_named = encoder is None and not layers and embeddings is None and not pattern
    what: list[str] = []
    if encoder or nothing_named:
        what.append(_freeze_encoder(model))
    if layers:
        what.append(_freeze_first_layers(model, layers))
    if embeddings or (layers and embeddings is None):
        _freeze_all(p for module in embedding_modules(model) for p in module.parameters())
        what.append("the embeddings")
    if pattern:
        what.append(_freeze_by_name(model, pattern))
    if not what:
        raise RecipeError("freeze is told to freeze nothing: leave it out.")
    return f"{' and '.join(what)} frozen; {_still_trains(model)}"


def frozen_parameters(model: nn.Module) -> list[str]:
    """The names of the parameters that do not train."""
    return [name for name, parameter in model.named_parameters() if not parameter.requires_grad]


def _freeze_all(parameters: Iterable[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.requires_grad = False


def _freeze_encoder(model: PreTrainedModel) -> str:
    if model.base_model is model:
        raise RecipeError(f"{type(model).__name__} has no head apart from its encoder: use freeze:layers=...")
    _freeze_all(model.base_model.parameters())
    return f"the whole encoder ({type(model.base_model).__name__})"


def _freeze_first_layers(model: PreTrainedModel, count: int) -> str:
    stacks = layer_stacks(model)
    available = len(stacks[0]) if stacks else 0
    if count > available:
        raise RecipeError(f"'freeze:layers={count}' is more than the {available} layers of this model.")
    for layer in list(stacks[0])[:count]:
        _freeze_all(layer.parameters())
    return f"the first {count} of {available} layers"


def _freeze_by_name(model: PreTrainedModel, pattern: str) -> str:
    matching = [parameter for name, parameter in model.named_parameters() if fnmatch(name, pattern)]
    if not matching:
        example = next(name for name, _ in model.named_parameters())
        raise RecipeError(f"'freeze:pattern={pattern}' matches no parameter; their names look like '{example}'.")
    _freeze_all(matching)
    return f"{len(matching)} parameters matching '{pattern}'"


def _still_trains(model: nn.Module) -> str:
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if not trainable:
        raise RecipeError("freeze leaves nothing to train: freeze less.")
    total = sum(p.numel() for p in model.parameters())
    return f"{format_count(trainable)} of {format_count(total)} parameters still train"
