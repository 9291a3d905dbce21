"""The list of strategies, gentlest first; a new strategy is one file and one line here."""

from __future__ import annotations

from importlib import import_module

from tightfit.strategies.base import Strategy

_NAMES = (
    "adamw",
    "tiled-attention",
    "micro-batch",
    "gradient-checkpointing",
    "chunked-layers",
    "offload-activations",
    "length-bucketing",
    "mixed-precision",
    "adamw-16bit",
    "adamw-8bit",
    "adafactor",
    "bf16-weights",
    "offload-optimizer",
    "optimizer-in-backward",
    "lora",
    "freeze",
    "max-length",
)
"""In the order in which plans print them; optimizers from most to least state."""


def _load(name: str) -> type[Strategy]:
    """The strategy of this name, from the module of the same name."""
    module = import_module(f"{__name__}.{name.replace('-', '_')}")
    return next(kind for kind in vars(module).values() if getattr(kind, "name", None) == name)


STRATEGIES: dict[str, type[Strategy]] = {name: _load(name) for name in _NAMES}
