"""LoRA adapters by peft: added to a model in place, saved, and merged or removed again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tightfit.models import layer_stacks
from tightfit.optional_imports import allow_imports

if TYPE_CHECKING:
    import torch
    from peft import LoraConfig
    from transformers import PreTrainedModel


_NAME = "default"  # the adapter name that peft uses


class LoraAdapter:
    """LoRA by peft, on the model object itself, so that no other code needs to know about it."""

    def __init__(self, model: PreTrainedModel, config: LoraConfig, *, merge: bool) -> None:
        from peft import LoraModel

        self.model, self.config, self.merge = model, config, merge
        self._tuner = LoraModel(model, config, _NAME)
        for parameter in head_parameters(model).values():
            parameter.requires_grad = True

    def merge_or_unload(self) -> None:
        """Remove the adapter from the model, after adding it to the weights if `merge` is set."""
        if self.merge:
            self._tuner.merge_and_unload()
        else:
            self._tuner.unload()

    def save(self, folder: Path) -> None:
        """Write adapter and head in peft's file format, which transformers and peft load."""
        from safetensors.torch import save_file

        head = head_parameters(self.model)
        trained = head | {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        names = sorted({name.partition(".")[0] for name in head})
        replace(self.config, modules_to_save=names or None, inference_mode=True).save_pretrained(str(folder))
        weights = {_peft_name(name): p.detach().contiguous() for name, p in trained.items()}
        save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def base_of_adapter(folder: Path) -> str | None:
    """The base model of a folder that holds only an adapter for it; None for one with weights of its own."""
    file = folder / "adapter_config.json"
    if not file.is_file() or any(folder.glob("model*.safetensors")):
        return None
    return str(json.loads(file.read_text("utf-8"))["base_model_name_or_path"])


def with_adapter(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """The base model with the adapter and the head of a folder, as an ordinary model."""
    allow_imports("peft")
    from peft import PeftModel

    merged: PreTrainedModel = PeftModel.from_pretrained(model, str(folder)).merge_and_unload()
    return merged


def _peft_name(name: str) -> str:
    """DoRA's vectors are modules in memory, and plain tensors in a file."""
    name = name.replace(f".{_NAME}.", ".").replace(".lora_magnitude_vector.weight", ".lora_magnitude_vector")
    return f"base_model.model.{name}"


def head_parameters(model: PreTrainedModel) -> dict[str, torch.nn.Parameter]:
    """The parameters outside the base model; none of a language model, whose head is pretrained as its words are."""
    if is_language_model(model):
        return {}
    inside = f"{model.base_model_prefix}."
    return {name: parameter for name, parameter in model.named_parameters() if not name.startswith(inside)}


def is_language_model(model: PreTrainedModel) -> bool:
    """Whether its head predicts words."""
    return model.get_output_embeddings() is not None


def find_targets(model: PreTrainedModel) -> list[str]:
    """The modules that peft adapts by default in this architecture, else all linear modules of the layers."""
    from torch import nn

    from tightfit.compat import LORA_TARGETS

    if model.config.model_type in LORA_TARGETS:
        return list(LORA_TARGETS[model.config.model_type])
    inside = {module for stack in layer_stacks(model) for module in stack.modules()}
    return [name for name, module in model.named_modules() if module in inside and isinstance(module, nn.Linear)]


def uses_conv1d(model: PreTrainedModel, targets: list[str]) -> bool:
    """Whether a target is a Conv1D, as in GPT-2: its weight matrix is transposed."""
    from tightfit.compat import Conv1D

    modules = [module for name, module in model.named_modules() if name.rpartition(".")[2] in targets]
    return any(isinstance(module, Conv1D) for module in modules)
