"""Where a transformer keeps its layers and its embeddings, and how many there are, whatever it calls them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn
    from transformers import PretrainedConfig, PreTrainedModel

_DEPTHS = ("num_hidden_layers", "num_decoder_layers", "encoder_layers", "decoder_layers")


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


def depth_of(config: PretrainedConfig) -> int | None:
    """How many layers the model has; None if it does not say, or its stacks are not equally deep."""
    config = config.get_text_config()
    depths = {getattr(config, name) for name in _DEPTHS if hasattr(config, name)}
    return depths.pop() if len(depths) == 1 else None


def period_of(config: PretrainedConfig) -> int:
    """After how many layers the config describes the same layer again (ModernBERT: two local ones, one global)."""
    lists = _lists_of_layers(config.get_text_config()).values()
    depth = depth_of(config) or 1
    return next(n for n in range(1, depth + 1) if all(values[n:] == values[:-n] for values in lists))


def set_depth(config: PretrainedConfig, layers: int) -> None:
    """Leave only the first layers."""
    config = config.get_text_config()
    lists = _lists_of_layers(config)
    for name in _DEPTHS:
        if hasattr(config, name):
            setattr(config, name, layers)
    for name, values in lists.items():
        setattr(config, name, values[:layers])


def _lists_of_layers(config: PretrainedConfig) -> dict[str, list[Any]]:
    """What a config says of every layer by itself."""
    depth = depth_of(config)
    return {name: value for name, value in vars(config).items() if isinstance(value, list) and len(value) == depth}
