"""Model sources: the model of a training run comes from a job (a name and a task) or is given as an object.

Either way a simulation builds a model of its own, without weights.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from tightfit.compat import import_model_code
from tightfit.data.labels import Labels
from tightfit.job import Job
from tightfit.models import Loading, layer_period, layer_stacks, load_config, load_model, num_layers, truncate_layers
from tightfit.tasks import find_task

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


class ModelSource(Protocol):
    """Where the model of a training run comes from."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def loads_weights(self) -> bool:
        """Whether building it reads weights from files."""

    @property
    def peft_type(self) -> str | None:
        """peft's name for its task; None if unknown."""

    @property
    def resident_bytes(self) -> int:
        """Bytes of host memory that its weights take before it is built."""

    @property
    def depth(self) -> int | None:
        """The number of layers, if it can be built with fewer."""

    @property
    def layer_period(self) -> int:
        """The number of layers after which their types repeat."""

    @property
    def predicts_words(self) -> bool:
        """Whether it predicts tokens among all words it knows."""

    def import_code(self) -> None:
        """Import the code of the model: it is part of the process size, and forked workers inherit it."""

    def build(self, loading: Loading, layers: int | None = None) -> PreTrainedModel:
        """Build the model, or one with fewer layers."""

    def without_weights(self) -> ModelSource:
        """The same model for a simulation, which has no use for the values of the weights."""


@dataclass(frozen=True)
class JobModel:
    """The pretrained model of a job, with the head of its task."""

    job: Job
    labels: Labels
    tokenizer: PreTrainedTokenizerBase
    resident_bytes = 0

    @property
    def name(self) -> str:
        return self.job.model

    @property
    def loads_weights(self) -> bool:
        return not self.job.random_weights

    @property
    def peft_type(self) -> str | None:
        return find_task(self.job.task).peft_type

    @property
    def depth(self) -> int | None:
        return num_layers(self._config)

    @property
    def layer_period(self) -> int:
        return layer_period(self._config)

    @property
    def predicts_words(self) -> bool:
        return find_task(self.job.task).predicts_words

    def import_code(self) -> None:
        import_model_code(find_task(self.job.task).head(), self._config)

    def build(self, loading: Loading, layers: int | None = None) -> PreTrainedModel:
        task = find_task(self.job.task)
        config = load_config(self.job.model, **task.config_changes(self.labels))
        config.get_text_config().pad_token_id = self.tokenizer.pad_token_id  # decoders find a row's last token by it
        config.get_text_config().use_cache = False  # the key-value cache is for generation
        if layers is not None:
            truncate_layers(config, layers)
        return load_model(task.head(), self.job.model, config, random_weights=self.job.random_weights, loading=loading)

    def without_weights(self) -> JobModel:
        return replace(self, job=self.job.model_copy(update={"random_weights": True}))

    @cached_property
    def _config(self) -> PretrainedConfig:
        return load_config(self.job.model)


@dataclass(frozen=True)
class GivenModel:
    """A model that exists already, whatever was changed in it."""

    model: PreTrainedModel
    loads_weights = False
    peft_type = None
    predicts_words = False  # its logits may be read by the user's code: what needs no logits is not tried by itself

    @property
    def name(self) -> str:
        return type(self.model).__name__

    @property
    def resident_bytes(self) -> int:
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in self._tensors()}
        return sum(storages.values())

    @cached_property
    def depth(self) -> int | None:
        """The layers of its stacks, if these are equally deep and a layer differs from others by its period only."""
        stacks, period = layer_stacks(self.model), self.layer_period
        depths = {len(stack) for stack in stacks}
        if len(depths) != 1 or not all(_repeats(stack, period) for stack in stacks):
            return None
        return depths.pop()

    @cached_property
    def layer_period(self) -> int:
        config = getattr(self.model, "config", None)
        return layer_period(config) if config is not None else 1

    def import_code(self) -> None:
        pass

    def build(self, loading: Loading, layers: int | None = None) -> PreTrainedModel:
        return self.model

    def without_weights(self) -> GivenModel:
        return _EmptyCopy(self.model)

    def _tensors(self) -> list[torch.Tensor]:
        return [t for t in (*self.model.parameters(), *self.model.buffers()) if t.device.type == "cpu"]


def _repeats(stack: torch.nn.ModuleList, period: int) -> bool:
    """Whether the layers after the first repeat: their parameters have the same names, shapes, formats and training."""
    layers = [
        [(name, p.shape, p.dtype, p.requires_grad) for name, p in layer.named_parameters()] for layer in list(stack)[1:]
    ]
    return layers[period:] == layers[: max(0, len(layers) - period)]


class _EmptyCopy(GivenModel):
    """Builds copies of a model whose tensors are new ones of the same shape."""

    def build(self, loading: Loading, layers: int | None = None) -> PreTrainedModel:
        import torch

        copies: dict[int, Any] = {}
        for parameter in self.model.parameters():
            values = torch.empty(parameter.shape, dtype=parameter.dtype)
            copies[id(parameter)] = torch.nn.Parameter(values, requires_grad=parameter.requires_grad)
        for buffer in self.model.buffers():
            copies[id(buffer)] = torch.empty(buffer.shape, dtype=buffer.dtype)
        model = copy.deepcopy(self.model, copies)
        if layers is not None:
            _keep_first_layers(model, layers)
        return model


def _keep_first_layers(model: PreTrainedModel, layers: int) -> None:
    for stack in layer_stacks(model):
        del stack[layers:]
    if (config := getattr(model, "config", None)) is not None:
        truncate_layers(config, layers)
