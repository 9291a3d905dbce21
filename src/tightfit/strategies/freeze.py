"""Freezing: train only a part of the model.

A frozen parameter has no gradient and no optimizer state, and layers below the lowest trained one save no activations.
Frozen parameters are not trained, so the resulting model is a different one. Freezing the first layers includes the
embeddings, because while those are trained the backward pass has to go through the frozen layers anyway.

Where only the head is trained, the frozen encoder computes the same output for an example in every epoch. So it runs
once over each example, in batches of similar length, and the head trains on the stored outputs: a few kilobytes per
example, in a file. The second epoch costs next to nothing. With `cache=false` the encoder runs in every step, and its
dropout makes its outputs slightly different each time; the stored outputs are computed without dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from tightfit.data.batching import Batching
from tightfit.errors import RecipeError
from tightfit.messages import Message, both, msg
from tightfit.models import embedding_modules, layer_stacks
from tightfit.strategies.base import Case, Changes, MemoryKind, Result, Stage, Strategy, TraceHints
from tightfit.strategies.lora import LoraExport
from tightfit.strategies.parts import Parts, trained_weights
from tightfit.units import format_count

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import nn
    from transformers import PreTrainedModel

    from tightfit.data.batches import Batch
    from tightfit.ops.feature_cache import FeatureCache


@dataclass(frozen=True)
class Freeze(Strategy):
    """Freeze the encoder, its first layers, the embeddings or parameters by name."""

    name: ClassVar[str] = "freeze"
    frees: ClassVar[tuple[MemoryKind, ...]] = (MemoryKind.GRADIENTS, MemoryKind.OPTIMIZER_STATE, MemoryKind.ACTIVATIONS)
    result: ClassVar[Result] = Result.DIFFERENT
    changes: ClassVar[Changes] = Changes.MODEL
    summary: ClassVar[Message] = msg("freezes the encoder, its first layers, the embeddings or parameters by name")

    encoder: bool | None = None
    """Everything but the new head; the default if nothing else is named."""
    layers: int = Field(default=0, ge=0)
    """The first k layers, with the embeddings."""
    embeddings: bool | None = None
    """The embeddings; with `layers`, whether they are included."""
    pattern: str = ""
    """Parameters whose names match, such as *.attention.*"""
    cache: bool = True
    """Run the encoder once over each example and cache its outputs, where it is frozen completely."""

    @property
    def hints(self) -> TraceHints:
        return TraceHints(layer_period=None if self.layers or self.pattern else 1)

    @classmethod
    def offers(cls, case: Case) -> Sequence[Strategy]:
        """Half the layers, three quarters of them, or all but the head."""
        if case.stage is not Stage.FEWER_PARAMETERS:
            return ()
        layers = [case.layers * share // 4 for share in (2, 3)] if case.layers and case.layers >= 4 else []
        return *(cls(layers=count) for count in layers), cls()

    def suits(self, others: Sequence[Strategy], case: Case) -> bool:
        return all(other.result is not Result.DIFFERENT for other in others)

    def apply(self, parts: Parts) -> Parts:
        if isinstance(parts.export, LoraExport) and not (self.layers or self.embeddings or self.pattern):
            raise RecipeError(
                msg("'{spec}' and 'lora' clash: lora trains matrices inside the frozen part. Keep one.", spec=self.spec)
            )
        frozen = freeze(
            parts.model,
            encoder=self.encoder,
            layers=self.layers,
            embeddings=self.embeddings,
            pattern=self.pattern,
        )
        feature_cache = self._feature_cache(parts.model)
        if feature_cache is None:
            return replace(parts, notes=(*parts.notes, msg("freeze: {frozen}", frozen=frozen)))
        note = msg(
            "freeze: {frozen}; the encoder runs once over each example, without dropout, and the head trains on its "
            "cached outputs",
            frozen=frozen,
        )
        return replace(
            parts,
            source=CachedFeatures(feature_cache),
            export=TrainedWeights(),
            notes=(*parts.notes, note),
        )

    def _feature_cache(self, model: PreTrainedModel) -> FeatureCache | None:
        """A cache for the frozen encoder; None where a part of it trains or the head reads more than can be cached."""
        from tightfit.ops.feature_cache import find_cacheable_encoder

        trains = any(parameter.requires_grad for parameter in model.base_model.parameters())
        return find_cacheable_encoder(model) if self.cache and model.base_model is not model and not trains else None


class TrainedWeights:
    """Checkpoints leave out the frozen weights, which the base model has; the saved model holds all."""

    saves_model = True

    def checkpoint_weights(self, model: PreTrainedModel) -> dict[str, torch.Tensor]:
        return trained_weights(model)

    def finish(self, folder: Path | None) -> None:
        pass


class CachedFeatures:
    """Rows are the outputs of a frozen encoder, one vector each: it runs once over each example, before training."""

    runs_encoder = False

    def __init__(self, cache: FeatureCache | None) -> None:
        self.cache = cache

    def batching(self, tokens: Batching) -> Batching:
        """A row has a single token, so the whole batch fits into one pass."""
        return replace(tokens, max_length=1, micro_batch_size=None, micro_batch_tokens=None, chunk_rows=None)

    def encoder_batches(self, tokens: Batching, lengths: Sequence[int]) -> list[list[int]]:
        """Rows of similar length together, longest first."""
        longest_first = sorted((min(length, tokens.max_length) for length in lengths), reverse=True)
        return [longest_first[i : i + tokens.no_grad_rows] for i in range(0, len(lengths), tokens.no_grad_rows)]

    @property
    def row_bytes(self) -> int:
        return sum(value.nbytes for value in self._cache.dummy_features(1).values())

    def encode(self, batch: Batch, *, check: bool) -> Batch:
        features, logits = self._cache.features(batch)
        if check:
            self._cache.check_same_logits(features, logits)
        return features

    def fake_batch(self, tokens: Callable[..., Batch]) -> Batch:
        labels = tokens("labels")
        return self._cache.dummy_features(len(labels["labels"])) | labels

    @property
    def _cache(self) -> FeatureCache:
        assert self.cache is not None  # only a copy for estimates has none
        return self.cache

    def without_model(self) -> CachedFeatures:
        return CachedFeatures(None)


def freeze(
    model: PreTrainedModel,
    *,
    encoder: bool | None = None,
    layers: int = 0,
    embeddings: bool | None = None,
    pattern: str = "",
) -> Message:
    """Freeze parts of a model in place; returns a sentence on what is frozen and how much still trains."""
    nothing_named = encoder is None and not layers and embeddings is None and not pattern
    frozen: list[Message] = []
    if encoder or nothing_named:
        frozen.append(_freeze_encoder(model))
    if layers:
        frozen.append(_freeze_first_layers(model, layers))
    if embeddings or (layers and embeddings is None):
        _freeze_all(p for module in embedding_modules(model) for p in module.parameters())
        frozen.append(msg("the embeddings"))
    if pattern:
        frozen.append(_freeze_by_name(model, pattern))
    if not frozen:
        raise RecipeError(msg("'freeze' has nothing to freeze: leave it out, or name layers, embeddings or pattern."))
    return _frozen_note(model, frozen)


def _frozen_note(model: PreTrainedModel, frozen: list[Message]) -> Message:
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if not trainable:
        raise RecipeError(msg("'freeze' leaves nothing to train: freeze less."))
    return msg(
        "{parts} frozen; {trained} of {all} parameters still train",
        parts=both(*frozen),
        trained=format_count(trainable),
        all=format_count(sum(p.numel() for p in model.parameters())),
    )


def frozen_parameters(model: nn.Module) -> list[str]:
    """The names of the parameters that do not train."""
    return [name for name, parameter in model.named_parameters() if not parameter.requires_grad]


def _freeze_all(parameters: Iterable[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.requires_grad = False


def _freeze_encoder(model: PreTrainedModel) -> Message:
    if model.base_model is model:
        name = type(model).__name__
        raise RecipeError(msg("{model} has no separate head: use freeze:layers=... instead.", model=name))
    _freeze_all(model.base_model.parameters())
    return msg("the whole encoder ({encoder})", encoder=type(model.base_model).__name__)


def _freeze_first_layers(model: PreTrainedModel, count: int) -> Message:
    stacks = layer_stacks(model)
    available = len(stacks[0]) if stacks else 0
    if count > available:
        raise RecipeError(
            msg(
                "'freeze:layers={count}' is more than the {available} layers of this model: use fewer.",
                count=count,
                available=available,
            )
        )
    for layer in list(stacks[0])[:count]:
        _freeze_all(layer.parameters())
    return msg("the first {count} of {available} layers", count=count, available=available)


def _freeze_by_name(model: PreTrainedModel, pattern: str) -> Message:
    matching = [parameter for name, parameter in model.named_parameters() if fnmatch(name, pattern)]
    if not matching:
        example = next(name for name, _ in model.named_parameters())
        raise RecipeError(
            msg(
                "'freeze:pattern={pattern}' matches no parameter; their names look like '{example}'.",
                pattern=pattern,
                example=example,
            )
        )
    _freeze_all(matching)
    return msg("{count} parameters matching '{pattern}'", count=len(matching), pattern=pattern)


Freeze.zh = {
    Freeze.summary: "冻结整个编码器、编码器的前几层、嵌入层，或按名称指定的参数",
    "'{spec}' and 'lora' clash: lora trains matrices inside the frozen part. Keep one.": (
        "“{spec}”与“lora”冲突：lora 训练的矩阵位于冻结的部分。请保留一个。"
    ),
    "freeze: {frozen}": "freeze：{frozen}",
    "freeze: {frozen}; the encoder runs once over each example, without dropout, and the head trains on "
    "its cached outputs": "freeze：{frozen}；编码器对每条样本只计算一次（不用 dropout），分类头用缓存的输出训练",
    "{parts} frozen; {trained} of {all} parameters still train": (
        "冻结了{parts}；仍有 {trained} / {all} 个参数参与训练"
    ),
    "the embeddings": "嵌入层",
    "the whole encoder ({encoder})": "整个编码器（{encoder}）",
    "the first {count} of {available} layers": "前 {count} 层（共 {available} 层）",
    "{count} parameters matching '{pattern}'": "与“{pattern}”匹配的 {count} 个参数",
    "'freeze' has nothing to freeze: leave it out, or name layers, embeddings or pattern.": (
        "“freeze”没有可冻结的内容：请去掉它，或指定 layers、embeddings 或 pattern。"
    ),
    "{model} has no separate head: use freeze:layers=... instead.": (
        "{model} 没有单独的分类头：请改用 freeze:layers=...。"
    ),
    "'freeze:layers={count}' is more than the {available} layers of this model: use fewer.": (
        "“freeze:layers={count}”超过了这个模型的 {available} 层：请减少层数。"
    ),
    "'freeze:pattern={pattern}' matches no parameter; their names look like '{example}'.": (
        "“freeze:pattern={pattern}”没有匹配任何参数；参数名形如“{example}”。"
    ),
    "'freeze' leaves nothing to train: freeze less.": "“freeze”之后没有可训练的参数：请减少冻结的部分。",
    "The encoder's outputs cannot be cached for {head}, whose head reads more than a weighted sum of "
    "them: use freeze:cache=false.": (
        "{head} 的分类头读取的不只是编码器输出的加权和，无法缓存：请用 freeze:cache=false。"
    ),
}
