"""Products in bf16 on a CPU: what autocast does, with fewer copies.

autocast copies the input of queries, keys and values three times, as norms return fp32, and every weight for every
chunk of a layer; it makes each weight's gradient in bf16 and again in fp32. Here norms return bf16, which the next
products share, the chunks of a layer share one copy of a weight, and gradients are added up in fp32.
"""

from __future__ import annotations

from typing import Any

import torch

from tightfit.ops.grad_accumulation import NarrowWeight, accumulate_in_place


def use_bf16_products(model: torch.nn.Module) -> None:
    """Make linear layers and norms compute so under autocast."""
    for linear in accumulate_in_place([model]):
        linear.narrow = NarrowWeight()
    for module in model.modules():
        if "Norm" in type(module).__name__ and not list(module.children()):
            module.register_forward_hook(_narrowed)


def _narrowed(norm: torch.nn.Module, inputs: Any, out: Any) -> Any:
    is_wide = isinstance(out, torch.Tensor) and out.dtype is torch.float32
    return out.to(torch.bfloat16) if is_wide and torch.is_autocast_enabled(out.device.type) else None
