"""Process: what this process holds without any tensor, with everything loaded that a training loads."""

from __future__ import annotations

import gc
from functools import cache

from tightfit.device import Device


def overhead_of(device: Device) -> int:
    """On a CPU the process itself, measured; on a card the driver's context."""
    if device.kind != "cpu":
        return device.context
    from tightfit.allocator import give_back_freed_memory
    from tightfit.meter import meter_for

    load_everything()
    gc.collect()  # who answers in a hurry has not cleared up
    give_back_freed_memory()
    return meter_for(device).gauge.now()


def is_everything_loaded() -> bool:
    """Whether the second that it takes is behind us."""
    return load_everything.cache_info().currsize > 0


@cache
def load_everything() -> None:
    """Libraries, and by one small real step also threads, kernels and their buffers: some 30 MB that stay."""
    import torch

    import tightfit.trainer  # noqa: F401

    with torch.random.fork_rng([]):
        inner, outer, norm = torch.nn.Linear(768, 3072), torch.nn.Linear(3072, 768), torch.nn.LayerNorm(768)
        rows = torch.ones(8, 128, 768, requires_grad=True)
        heads = norm(rows).view(8, 128, 12, 64).transpose(1, 2)
        mixed = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.1)
        out = outer(torch.nn.functional.gelu(inner(mixed.transpose(1, 2).reshape(8, 128, 768)))).mean(1)
        torch.nn.functional.cross_entropy(out, torch.zeros(8, dtype=torch.long)).backward()
        parameters = [p for layer in (inner, outer, norm) for p in layer.parameters()]
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        torch.optim.AdamW(parameters, fused=True).step()
