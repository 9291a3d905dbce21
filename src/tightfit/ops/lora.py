"""Adapter: small matrices that learn beside frozen weights, put into a model in place and taken out again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tightfit.models import layer_stacks

if TYPE_CHECKING:
    import torch
    from peft import LoraConfig
    from transformers import PreTrainedModel


_NAME = "default"  # peft's own


class LoraAdapter:
    """LoRA by peft. The model stays the object it was, so nothing else has to know."""

    def __init__(self, model: PreTrainedModel, config: LoraConfig, *, merge: bool) -> None:
        from peft import LoraModel

        self.model, self.config, self.merge = model, config, merge
        self._tuner = LoraModel(model, config, _NAME)
        for parameter in head_parameters(model).values():
            parameter.requires_grad = True

    def merge_or_unload(self) -> None:
        """Leave the plain model, with what was learnt added to its weights if that is wanted."""
        if self.merge:
            self._tuner.merge_and_unload()
        else:
            self._tuner.unload()

    def save(self, folder: Path) -> None:
        """Write what was learnt as peft does, with the head in it; transformers and peft find it there."""
        from safetensors.torch import save_file

        head = head_parameters(self.model)
        learnt = head | {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        names = sorted({name.partition(".")[0] for name in head})
        replace(self.config, modules_to_save=names, inference_mode=True).save_pretrained(str(folder))
        weights = {_peft_name(name): p.detach().contiguous() for name, p in learnt.items()}
        save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def _peft_name(name: str) -> str:
    return f"base_model.model.{name.replace(f'.{_NAME}.', '.')}"


def head_parameters(model: PreTrainedModel) -> dict[str, torch.nn.Parameter]:
    """What lies above the trunk."""
    inside = f"{model.base_model_prefix}."
    return {name: parameter for name, parameter in model.named_parameters() if not name.startswith(inside)}


def find_targets(model: PreTrainedModel) -> list[str]:
    """Which matrices peft's authors adapt in this architecture; where they do not say, all of the layers' own."""
    from torch import nn

    from tightfit.compat import LORA_TARGETS

    if model.config.model_type in LORA_TARGETS:
        return list(LORA_TARGETS[model.config.model_type])
    inside = {module for stack in layer_stacks(model) for module in stack.modules()}
    return [name for name, module in model.named_modules() if module in inside and isinstance(module, nn.Linear)]


def uses_conv1d(model: PreTrainedModel, targets: list[str]) -> bool:
    """GPT-2 keeps its matrices the other way round."""
    from tightfit.compat import Conv1D

    modules = [module for name, module in model.named_modules() if name.rpartition(".")[2] in targets]
    return any(isinstance(module, Conv1D) for module in modules)
