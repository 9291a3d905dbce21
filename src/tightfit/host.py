"""Host memory: where tensors of a card wait, in the machine around it.

Copies go there and back in the card's own order of work, so none is read before it is there. The memory is pinned,
which lets the card fetch it by itself, at twice the speed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tightfit.errors import RecipeError
from tightfit.shapes import on_host, stands_for

if TYPE_CHECKING:
    import torch

    from tightfit.device import Device

TRANSFER = "copies to and from host memory"  # sorts of work, for those who count it
HOST_WORK = "work of the host's processor"


def refuse_without_card(name: str, device: Device) -> None:
    """Only a card has memory of its own."""
    if device.kind != "cuda":
        raise RecipeError(
            f"'{name}' cannot be used on {device.title}: there is no second memory to move things to. Leave it out."
        )


def to_host(tensor: torch.Tensor, *, wait: bool = False) -> torch.Tensor:
    """A copy in host memory. With `wait` it is there when this returns, for the processor to read."""
    import torch

    with on_host():
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda)
    with stands_for(sort=TRANSFER):
        return copy.copy_(tensor, non_blocking=not wait)


def to_card(copy: torch.Tensor, device: torch.device) -> torch.Tensor:
    """What waited, back where it came from."""
    import torch

    tensor = torch.empty(copy.shape, dtype=copy.dtype, device=device)
    with stands_for(sort=TRANSFER):
        return tensor.copy_(copy, non_blocking=True)
