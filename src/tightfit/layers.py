"""Where a transformer keeps its layers and its embeddings, whatever the architecture calls them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel


def layer_stacks(model: nn.Module) -> list[nn.ModuleList]:
    """The outermost lists of alike layers: one in an encoder or decoder, two in an encoder-decoder."""
    from torch import nn

    stacks: list[nn.ModuleList] = []
    inside: set[str] = set()
    for name, module in model.named_modules():
        if any(name.startswith(f"{outer}.") for outer in inside):
            continue
        if isinstance(module, nn.ModuleList) and len({type(layer) for layer in module}) == 1:
            stacks.append(module)
            inside.add(name)
    return stacks


def embedding_modules(model: PreTrainedModel) -> list[nn.Module]:
    """What turns token ids into the first layer's input: modules named so, and lookup tables outside the layers."""
    from torch import nn

    inside = {module for stack in layer_stacks(model) for module in stack.modules()}
    return [
        module
        for name, module in model.base_model.named_modules()
        if module not in inside
        and (name.partition(".")[0].startswith("embeddings") or isinstance(module, nn.Embedding))
    ]
