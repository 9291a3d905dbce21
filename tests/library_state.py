"""The functions and hooks of torch and transformers, to check that nothing stays replaced."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.utils.checkpoint
import transformers
from torch.nn.modules import module
from torch.optim import optimizer
from transformers.initialization import TORCH_MODULES_TO_PATCH

SPACES: list[Any] = [
    torch,
    torch.nn.functional,
    torch.utils.checkpoint,
    torch.Tensor,
    torch.nn.Module,
    torch.optim.Optimizer,
    transformers.PreTrainedModel,
    *(sys.modules[name] for name in TORCH_MODULES_TO_PATCH),
]


def library_functions() -> dict[tuple[str, str], Any]:
    """Every name of these modules and classes, every global hook, and the active modes."""
    found = {(space.__name__, name): value for space in SPACES for name, value in vars(space).items()}
    found |= {("hooks", name): dict(hooks) for name, hooks in global_hooks().items()}
    found[("modes", "number")] = torch._C._len_torch_dispatch_stack()
    found[("modes", "fake")] = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    return found


def global_hooks() -> dict[str, Any]:
    spaces = {**vars(module), **vars(optimizer)}
    return {name: value for name, value in spaces.items() if name.startswith("_global_") and isinstance(value, dict)}


def changes(before: dict[tuple[str, str], Any]) -> list[tuple[str, str]]:
    """The names that have another value now; new ones do not count: transformers adds a method to torch's modules."""
    now = library_functions()
    return [name for name, value in before.items() if not _is_same(name, value, now.get(name))]


def _is_same(name: tuple[str, str], before: Any, now: Any) -> bool:
    return before is now or (name[0] in ("hooks", "modes") and before == now)
